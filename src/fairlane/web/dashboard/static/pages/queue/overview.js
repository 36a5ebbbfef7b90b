// The overview: what happens now, and in the last minutes.
import { badge, figure, meter, notice, panel, taskLine } from "../../parts/bits.js";
import { lineChart } from "../../parts/charts/lines.js";
import { legend, STEPS } from "../../parts/charts/frame.js";
import { el, show } from "../../parts/dom.js";
import { compact, now as time, number, span } from "../../parts/format.js";
import { longCallPanel, longMark } from "./longcalls.js";
import { requestHref } from "../../shell/router.js";
import { table } from "../../parts/table.js";
import { cut, GAP_MS, watch } from "../../parts/watch.js";

export function mount(root, context) {
  const state = el("div", { class: "row" });
  const figures = el("dl", { class: "figures" });
  const waiting = lineChart({ title: "Sub-requests that wait", format: small, filled: true, steps: STEPS.whole, gapMs: GAP_MS });
  const rate = lineChart({ title: "Sub-requests per second", unit: "/s", format: small, filled: true, gapMs: GAP_MS });
  const waited = lineChart({ title: "Waiting time", format: shortSpan, steps: STEPS.ms, least: 1000, gapMs: GAP_MS });
  const demand = lineChart({ title: "Leases wanted and possible", format: small, steps: STEPS.whole, gapMs: GAP_MS });
  const oldest = lineChart({ title: "Age of the oldest waiting request", format: shortSpan, filled: true, steps: STEPS.ms, least: 1000, gapMs: GAP_MS });
  const rows = table({
    caption: "Requests at work, or most urgent", key: (one) => one.id, href: (one) => requestHref(one.id), signal: context.signal,
    columns: [
      { label: "Request", phone: "title", kind: "wide", cell: (one) => [el("a", { href: requestHref(one.id), class: "id" }, one.id), taskLine(one)] },
      { label: "State", phone: "side", cell: (one) => [badge(wordOf(one)), one.hangs && el("div", {}, longMark())] },
      { label: "Priority", kind: "right", cell: (one) => String(one.priority) },
      { label: "Workers", kind: "right", cell: (one) => `${number(one.held)} of ${number(one.limit)}` },
      { label: "Waiting", kind: "right", cell: (one) => number(one.waiting) },
      { label: "Done", kind: "right", cell: (one) => number(one.done) },
      { label: "Dead", kind: "right", cell: (one) => number(one.dead) },
      { label: "", name: "Progress", phone: "bare", cell: (one) => meter(one) },
    ],
    empty: el("p", { class: "muted" }, "No request is unfinished."),
  });
  const rest = el("p", { class: "muted small" });
  const calls = longCallPanel(context);
  context.body.append(
    state, calls.node, panel("", figures),
    el("div", { class: "grid" },
      panel("Waiting sub-requests", waiting.node),
      panel("Throughput", legend(["Done", "Failed attempts"]), rate.node),
      panel("Waiting time until the handler is called", legend(["Median", "90 %", "99 %"]), waited.node),
      panel("Demand beside capacity", legend(["Calls the workers can make", "Leases held", "Leases wanted"]), demand.node),
      panel("Oldest waiting request", oldest.node)),
    panel("Most important requests", rows.node, rest));

  watch(context, (frames, now) => {
    const last = frames.at(-1);
    show(state, stateOf(now, last));
    show(figures, figuresOf(last, now));
    waiting.update({ names: ["waiting"], points: frames.map((one) => [one.at_ms, one.waiting]) });
    rate.update({ names: ["done", "failed"], points: frames.map((one) => [one.at_ms, one.rates.done, one.rates.failed]) });
    waited.update({ names: ["50 %", "90 %", "99 %"], points: frames.map((one) => [one.at_ms, ...(one.rates.waited_ms ?? [null, null, null])]) });
    demand.update({ names: ["capacity", "held", "wanted"], points: frames.map((one) => [one.at_ms, one.units, one.held, one.held + one.demand]) });
    oldest.update({ names: ["oldest"], points: frames.map((one) => [one.at_ms, one.oldest_ms]) });
    calls.set(now.long_calls, now.more_long_calls);
    rows.set(now.requests.slice(0, 12).map((one) => ({ ...one, hangs: now.long_calls.some((call) => call.id === one.id) })));
    show(rest, [now.unfinished > 12 && `${number(now.unfinished)} requests are unfinished: the page Requests lists them. `, cut(now)]);
  });
}

function stateOf(now, last) {
  const { worker_totals: workers } = now;
  const found = [];
  if (now.is_paused) found.push(badge("paused", "The queue is paused"));
  if (workers.alive === 0) {
    found.push(last.demand > 0 ? notice("No worker takes from this queue: start one with rq-worker.") : badge("waiting", "No worker is here"));
  } else if (workers.late) found.push(badge("late", `${number(workers.late)} ${workers.late === 1 ? "worker is" : "workers are"} late`));
  else found.push(badge("alive", "All workers are alive"));
  if (last.held + last.demand > last.units && workers.alive) found.push(badge("waiting", "More is wanted than the workers can take"));
  return found;
}

function figuresOf(last, now) {
  const { rates } = last;
  const { worker_totals: workers } = now;
  const known = (value, text) => (value === null ? "–" : text(value));
  return [
    figure("Waiting", `${now.backlog.is_exact ? "" : "about "}${compact(now.backlog.waiting)}`, trendOf(now.backlog)),
    figure("Done", known(rates.done, (value) => `${compact(value)}/s`)),
    figure("Failed attempts", known(rates.failed, (value) => `${compact(value)}/s`), last.dead ? `${number(last.dead)} dead in unfinished requests` : null),
    figure("Waited, median", known(rates.waited_ms, (value) => span(value[0])), rates.waited_ms ? `99 %: ${span(rates.waited_ms[2])}` : null),
    figure("Oldest waiting", now.oldest ? span(last.oldest_ms) : "–", now.oldest ? el("a", { href: requestHref(now.oldest.id) }, now.oldest.id) : null),
    figure("Workers busy", `${number(workers.busy)} of ${number(workers.alive)}`, `${number(last.held)} of ${number(workers.units)} calls`),
    figure("Wanted", compact(last.held + last.demand), `leases: ${compact(last.held)} held, ${compact(last.demand)} more, ${compact(last.delayed)} tokens due later`),
    figure("Requests", compact(now.unfinished), `${compact(now.ended)} endings kept`),
  ];
}

/** Returns the trend in words: when the queue is empty at this pace, or that it grows; and the lanes. */
function trendOf({ waiting, lanes, ...pace }) {
  if (!waiting) return pace.is_exact ? "nothing waits" : null;
  const words = wordsOf(pace);
  const shown = Object.entries(lanes).slice(0, 3).map(([lane, count]) => `${compact(count)} in lane ${lane}`);
  return [words && [words, el("br")], shown.join(", "), Object.keys(lanes).length > 3 && ", …"];
}

/** Returns the words of QueueBacklog.trend (records.py) without the paces; null if the trend is not known. */
function wordsOf({ empty_ms: emptyMs, grows_per_s: grows, done_per_s: done, is_paused: isPaused }) {
  if (isPaused) return "paused";
  if (emptyMs !== null) return `empty in ${span(emptyMs)} at this pace`;
  if (grows > 0) return el("span", { class: "bad" }, `grows by ${small(grows)}/s`);
  if (done === 0) return "nothing works on them now";
  return grows === null ? null : "stays as it is";
}

function wordOf(one) {
  if (one.held || one.state !== "active") return one.held ? "working" : one.state;
  return one.opens_ms > time() ? "scheduled" : "waiting";
}

export const shortSpan = (ms) => (ms >= 60_000 ? `${Math.round(ms / 6000) / 10}m` : ms >= 1000 ? `${Math.round(ms / 100) / 10}s` : `${ms < 10 ? Math.round(ms * 100) / 100 : Math.round(ms)}ms`);

const small = (value) => (value < 10 ? String(Math.round(value * 100) / 100) : compact(value));
