// Token lanes: which worker held a permit of the request, and when.
import { nothing, panel } from "../../parts/bits.js";
import { legend } from "../../parts/charts/frame.js";
import { laneChart } from "../../parts/charts/lanes.js";
import { el, show } from "../../parts/dom.js";
import { counted, now, number, span } from "../../parts/format.js";

const WINDOW_MS = 60_000;
const MOST = 3000; // settled leases that the page keeps
const MOST_ROWS = 24;

export function lanePanel() {
  const settled = []; // oldest first
  const workers = []; // in the order in which they appeared: the colour of each
  let isWhole = true;
  const chart = laneChart({ title: "Leases by permit", left: 28 });
  const text = el("p", { class: "muted small" });
  const names = el("div");
  const body = el("div", { class: "stack tight" }, text, names, chart.node);
  const empty = nothing("workers", "No worker has held a permit of it yet");
  const node = panel("Token lanes", body, empty);

  function blockOf(worker, from, to, tip, dead = 0) {
    if (!workers.includes(worker)) workers.push(worker);
    return { worker, from, to, tip: `${worker}\n${tip}`, series: workers.indexOf(worker), open: to === null, bad: dead > 0 };
  }
  function blocksSince(from, held, end) {
    const past = settled.filter((one) => one.settled_ms >= from).map((one) => blockOf(one.worker, one.began_ms, one.settled_ms,
      `${span(one.settled_ms - one.began_ms)}: ${number(one.done)} done${one.dead ? `, ${number(one.dead)} dead` : ""}`, one.dead));
    const open = held.map((one) => blockOf(one.worker, one.since_ms, null,
      `permit ${one.permit}, held for ${span(end - one.since_ms)}\n${counted(one.owed, "sub-request")} to settle`));
    return [...past, ...open];
  }
  function describe(request, rows) {
    show(text, request.ended_ms ? "Its last leases." : `${request.held} of ${counted(request.limit, "permit")} held now.`,
      ` A block is a lease${request.ended_ms ? "" : ", a dashed one is held now"}. Leases that are over share rows in which they do not overlap.`,
      settled.some((one) => one.dead > 0) && " A red base: some of it is dead.", !isWhole && " Earlier leases are left out.",
      rows.length > MOST_ROWS && ` ${counted(rows.length - MOST_ROWS, "row")} more.`);
    const count = (worker) => rows.reduce((sum, row) => sum + row.blocks.filter((block) => block.worker === worker).length, 0);
    show(names, legend(workers.slice(0, 8).map((worker) => `${worker} (${number(count(worker))})`)));
  }
  return {
    node,
    after: () => settled.at(-1)?.log_id ?? "",
    update(request, found) {
      if (!settled.length) isWhole = found.is_whole;
      settled.push(...found.settled);
      settled.splice(0, settled.length - MOST);
      const end = request.ended_ms || now();
      const first = settled[0]?.began_ms ?? end - WINDOW_MS;
      const from = request.ended_ms ? Math.max(first, end - 10 * WINDOW_MS) : Math.max(end - WINDOW_MS, Math.min(first, end - 5000));
      const rows = rowsOf(blocksSince(from, found.held, end), request.ended_ms ? 0 : Math.min(request.limit, MOST_ROWS));
      empty.hidden = workers.length > 0;
      body.hidden = workers.length === 0;
      describe(request, rows);
      chart.update({ rows: rows.slice(0, MOST_ROWS), from, to: end });
    },
  };
}

/**
 * Returns rows in which no two leases overlap: as many as permits were held concurrently, and at least `least`. A
 * block goes on behind one of the same worker if it can. Which number a permit had is known only of those held now.
 */
function rowsOf(blocks, least) {
  const lanes = Array.from({ length: least }, () => ({ end: 0, worker: null, blocks: [] }));
  for (const block of blocks.sort((a, b) => a.from - b.from)) {
    const free = lanes.filter((lane) => lane.end <= block.from + 1);
    let lane = free.find((one) => one.worker === block.worker) ?? free.find((one) => one.worker === null) ?? free[0];
    if (!lane) lanes.push((lane = { end: 0, worker: null, blocks: [] }));
    lane.blocks.push(block);
    lane.worker = block.worker;
    lane.end = block.to ?? Infinity;
  }
  return lanes.map((lane, place) => ({ label: String(place + 1), blocks: lane.blocks }));
}
