// The workers: what each holds, how quick it is, and which are late.
import { badge, figure, nothing, panel } from "../../parts/bits.js";
import { el, show } from "../../parts/dom.js";
import { now, number, span } from "../../parts/format.js";
import { requestHref } from "../../shell/router.js";
import { table } from "../../parts/table.js";
import { watch } from "../../parts/watch.js";

export function mount(root, context) {
  let found = [];
  let text = context.query.get("q") ?? "";
  const figures = el("dl", { class: "figures" });
  const filter = el("input", { type: "search", "data-filter": true, value: text, placeholder: "host, worker or request", "aria-label": "Filter", oninput: () => {
    text = filter.value;
    context.setQuery({ q: text });
    draw();
  } });
  const rows = table({
    caption: "Workers", key: (one) => one.id, signal: context.signal,
    columns: [
      { label: "Worker", phone: "title", kind: "tight", cell: (one) => [el("span", { class: "whole" }, one.id), el("div", { class: "small muted" }, one.pid ? `process ${one.pid} on ${one.host}${one.version ? ` · Fairlane ${one.version}` : ""}${one.release ? ` · release ${one.release}` : ""}` : "its record has expired")] },
      { label: "Health", phone: "side", cell: (one) => (one.is_alive ? badge(one.leases ? "working" : "alive", one.leases ? "working" : "idle") : badge("late", "late: stopped or cut off")) },
      { label: "Heartbeat", kind: "right", cell: (one) => `${span(one.beat_age_ms)} ago`, sign: (one) => one.beat_age_ms },
      { label: "Leases", kind: "right", cell: (one) => number(one.leases) },
      { label: "Calls", kind: "right", cell: (one) => (one.units ? number(one.units) : "–") },
      { label: "Pace", kind: "right", cell: (one) => (one.per_s ? `${number(Math.round(one.per_s * 10) / 10)}/s` : "–") },
      { label: "Took last", kind: "wide names", cell: taken },
      { label: "Runs for", kind: "tight", cell: (one) => (one.started_ms ? span(Math.max(0, now() - one.started_ms)) : "–") },
    ],
    empty: nothing("workers", "No worker is here", "Start one with ", el("code", {}, "rq-worker"), "."),
  });
  const rest = el("p", { class: "muted small" });
  context.head("Workers", null, filter);
  context.body.append(panel("", figures), panel("", rows.node, rest));

  function draw() {
    const wanted = text.toLowerCase();
    const shown = found.filter((one) => [one.id, one.host ?? "", ...one.requests].some((name) => name.toLowerCase().includes(wanted)));
    rows.set(shown);
  }
  watch(context, (frames, look) => {
    const totals = look.worker_totals;
    found = look.workers;
    show(figures, figure("Alive", number(totals.alive)), figure("Busy", number(totals.busy), `${number(totals.alive - totals.busy)} idle`),
      figure("Late", number(totals.late), totals.late ? "their leases are taken back" : null),
      figure("Leases", number(totals.held), `${number(totals.units)} calls at a time`),
      figure("Pace", `${number(Math.round(totals.per_s))}/s`, "of all while they work"), figure("Oldest heartbeat", totals.alive + totals.late ? `${span(totals.oldest_ms)} ago` : "–"));
    show(rest, look.more_workers ? `${number(look.more_workers)} more workers are not listed: late ones and those with most leases are.` : "");
    draw();
  });
}

const SHOWN = 3;

function taken({ requests }) {
  if (!requests.length) return "–";
  const names = requests.slice(0, SHOWN).map((name) => el("div", {}, el("a", { class: "id", href: requestHref(name) }, name)));
  const more = requests.slice(SHOWN);
  return el("div", { class: "small" }, names, more.length ? el("span", { class: "muted", title: more.join(", ") }, `and ${more.length} more`) : null);
}
