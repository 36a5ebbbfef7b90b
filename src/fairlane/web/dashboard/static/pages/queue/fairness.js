// Who gets the workers: the share of leases by tenant, or by request of one priority.
import { nothing, panel } from "../../parts/bits.js";
import { shareChart } from "../../parts/charts/shares.js";
import { el, show } from "../../parts/dom.js";
import { number, percent } from "../../parts/format.js";
import { table } from "../../parts/table.js";
import { watch } from "../../parts/watch.js";

const NONE = "(no tenant)";

export function mount(root, context) {
  let by = context.query.get("by") ?? "tenant";
  let seen = [];
  const chart = shareChart();
  const choice = el("select", { "aria-label": "Shares by", onchange: () => {
    by = choice.value;
    context.setQuery({ by: by === "tenant" ? "" : by });
    draw();
  } });
  const rows = table({
    caption: "Shares of the leases in the last minutes", key: (one) => one.name, signal: context.signal,
    columns: [
      { label: "Name", phone: "title", kind: "wide", cell: (one) => el("span", { class: "id" }, one.name) },
      { label: "Share", phone: "side", kind: "right", cell: (one) => percent(one.share) },
      { label: "Leases now", kind: "right", cell: (one) => number(one.now) },
    ],
    empty: nothing("workers", "No lease was held in the last minutes"),
  });
  context.head("Fairness", "who gets the workers", el("label", { class: "row" }, "By ", choice));
  context.body.append(
    panel("Share of the leases over time", el("p", { class: "muted" }, "A lease is one call of a handler at work, or next in its worker. Leases are counted once a second, so a share is that of handler time."), chart.node),
    panel("In the last minutes, as a table", rows.node));

  function options() {
    const priorities = [...new Set(seen.flatMap((one) => one.shares.map((share) => share.priority)))].sort((a, b) => a - b);
    const wanted = [["tenant", "tenant"], ...priorities.map((one) => [String(one), `request of priority ${one}`])];
    if (!wanted.some(([value]) => value === by)) wanted.push([by, `request of priority ${by}`]);
    const sign = wanted.join();
    if (choice.dataset.sign !== sign && document.activeElement !== choice) {
      choice.dataset.sign = sign;
      show(choice, wanted.map(([value, text]) => el("option", { value }, text)));
    }
    choice.value = by;
  }
  function countsOf(frame) {
    if (by === "tenant") return Object.entries(frame.tenants).map(([name, held]) => [name || NONE, held]);
    return frame.shares.filter((one) => String(one.priority) === by).map((one) => [one.id, one.held]);
  }
  function draw() {
    options();
    const parts = seen.map((frame) => [frame.at_ms, new Map(countsOf(frame))]);
    const sums = new Map();
    for (const [, counts] of parts) for (const [name, held] of counts) sums.set(name, (sums.get(name) ?? 0) + held);
    const all = [...sums.values()].reduce((sum, one) => sum + one, 0);
    const last = parts.at(-1)?.[1] ?? new Map();
    const names = [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a));
    chart.update({ parts, names });
    rows.set(names.map((name) => ({ name, share: sums.get(name) / all, now: last.get(name) ?? 0 })));
  }
  draw();
  watch(context, (frames) => {
    seen = frames;
    draw();
  });
}
