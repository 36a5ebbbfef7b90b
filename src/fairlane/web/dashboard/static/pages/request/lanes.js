// Token lanes: which worker held a permit of the request, and when.
import { nothing, panel } from "../../parts/bits.js";
import { laneChart } from "../../parts/charts/lanes.js";
import { el, show } from "../../parts/dom.js";
import { counted, now, number, span } from "../../parts/format.js";

const WINDOW_MS = 60_000;
const MOST = 3000; // settled leases that the page keeps
const MOST_ROWS = 24;

export function lanePanel() {
  const settled = []; // oldest first
  const held = new Map(); // permit and its start -> a held lease
  const workers = []; // in the order in which they appeared: the colour of each
  let isWhole = true;
  const chart = laneChart({ title: "Leases by worker" });
  const text = el("p", { class: "muted small" });
  const empty = nothing("workers", "No worker has held a permit of it yet");
  const node = panel("Token lanes", el("div", { class: "stack tight" }, text, chart.node), empty);

  /** Returns the lanes: a row holds no two leases that overlap, so a worker has a row for each permit it held. */
  function rowsOf(blocks) {
    const lanes = new Map(); // worker -> [{end, blocks}]
    for (const block of blocks.sort((a, b) => a.from - b.from)) {
      const mine = lanes.get(block.worker) ?? [];
      let lane = mine.find((one) => one.end <= block.from + 2);
      if (!lane) mine.push((lane = { end: 0, blocks: [] }));
      lane.blocks.push(block);
      lane.end = block.to ?? Infinity;
      lanes.set(block.worker, mine);
    }
    return [...lanes].flatMap(([worker, mine]) => mine.map((lane, place) => ({ label: place ? `${worker} ·${place + 1}` : worker, blocks: lane.blocks })));
  }
  function blockOf(worker, from, to, tip, dead = 0) {
    if (!workers.includes(worker)) workers.push(worker);
    return { worker, from, to, tip, series: workers.indexOf(worker), open: to === null, text: dead ? `${dead} dead` : "" };
  }
  return {
    node,
    after: () => settled.at(-1)?.log_id ?? "",
    update(request, found) {
      if (!settled.length) isWhole = found.is_whole;
      settled.push(...found.settled);
      settled.splice(0, settled.length - MOST);
      held.clear();
      for (const one of found.held) held.set(one.permit, one);
      const end = request.ended_ms || now();
      const first = settled[0]?.began_ms ?? end - WINDOW_MS;
      const from = request.ended_ms ? Math.max(first, end - 10 * WINDOW_MS) : Math.max(end - WINDOW_MS, Math.min(first, end - 5000));
      const blocks = [
        ...settled.filter((one) => one.settled_ms >= from).map((one) => blockOf(one.worker, one.began_ms, one.settled_ms,
          `${span(one.settled_ms - one.began_ms)}: ${number(one.done)} done${one.dead ? `, ${number(one.dead)} dead` : ""}`, one.dead)),
        ...[...held.values()].map((one) => blockOf(one.worker, one.since_ms, null, `permit ${one.permit}, held for ${span(end - one.since_ms)}\n${counted(one.owed, "sub-request")} to settle`)),
      ];
      const rows = rowsOf(blocks);
      empty.hidden = rows.length > 0;
      chart.node.hidden = rows.length === 0;
      text.hidden = rows.length === 0;
      show(text, request.ended_ms ? `Its last leases, by the worker that held them.` :
        `${request.held} of ${counted(request.limit, "permit")} held now. A row is a permit in a worker's hands, a block a lease; a dashed block is held now.`,
      !isWhole && " Earlier leases are left out.", rows.length > MOST_ROWS && ` ${counted(rows.length - MOST_ROWS, "row")} more.`);
      chart.update({ rows: rows.slice(0, MOST_ROWS), from, to: end });
    },
  };
}
