// The priority ladder: how much waits in each of the 100 lanes, over the last minutes.
import { panel } from "../../parts/bits.js";
import { ladderChart } from "../../parts/charts/ladder.js";
import { button, el, show } from "../../parts/dom.js";
import { number } from "../../parts/format.js";
import { table } from "../../parts/table.js";
import { cut, watch } from "../../parts/watch.js";

export function mount(root, context) {
  let all = context.query.get("all") === "1";
  let seen = null;
  const chart = ladderChart();
  const which = button("", () => {
    all = !all;
    context.setQuery({ all: all ? "1" : "" });
    draw();
  }, { kind: "small" });
  const rows = table({
    caption: "What waits and what runs, by priority", key: (one) => String(one.priority), signal: context.signal,
    columns: [
      { label: "Priority", phone: "title", cell: (one) => [el("span", { class: "on-phone" }, "Priority "), String(one.priority)] },
      { label: "Waiting tokens", kind: "right", cell: (one) => number(one.tokens) },
      { label: "Leases held", kind: "right", cell: (one) => number(one.held) },
      { label: "Requests", kind: "right", cell: (one) => number(one.requests) },
      { label: "Sub-requests waiting", kind: "right", cell: (one) => number(one.waiting) },
      { label: "Dead", kind: "right", cell: (one) => number(one.dead) },
      { label: "Most tokens, last minutes", kind: "right", cell: (one) => number(one.most) },
    ],
    empty: el("p", { class: "muted" }, "Nothing waits and nothing runs."),
  });
  const note = el("p", { class: "muted small" });
  context.head("Priorities", "0 is the most urgent", which);
  context.body.append(
    panel("Tokens that wait in each lane", el("p", { class: "muted" }, "A token is one more lease that a worker could take. The stronger the colour of a cell, the more tokens wait. A line below a cell: workers hold leases of that priority. Arrow keys move the mark."),
      chart.node),
    panel("Now, as a table", rows.node, note));

  function draw() {
    show(which, all ? "Only priorities in use" : "All 100 priorities");
    if (!seen) return;
    const [frames, now] = seen;
    chart.update(frames, all);
    const most = (priority) => Math.max(0, ...frames.map((one) => one.lanes[priority] ?? 0));
    rows.set(now.lanes.map((one) => ({ ...one, most: most(one.priority) })));
    show(note, cut(now));
  }
  draw();
  watch(context, (frames, now) => {
    seen = [frames, now];
    draw();
  });
}
