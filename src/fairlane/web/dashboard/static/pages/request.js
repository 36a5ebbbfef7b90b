// One request: its progress, why it waits, who works on it, its failures, its history, its results.
import { get, part } from "../parts/api.js";
import { badge, figure, meter, notice, panel, stateOf } from "../parts/bits.js";
import { button, el, icon, show } from "../parts/dom.js";
import { compact, now, number, percent, setNow, span, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { actionButtons } from "./request/actions.js";
import { errorPanel } from "./request/errors.js";
import { historyPanel } from "./request/history.js";
import { lanePanel } from "./request/lanes.js";
import { latencyPanel } from "./request/latency.js";
import { resultPanel } from "./request/results.js";

const LIVE_MS = 1000;
const ENDED_MS = 15_000;
const SLOW_MS = 4000; // of what changes less often

export function mount(root, context) {
  const { id, signal } = context;
  const path = `v1/requests/${part(id)}`;
  const problem = el("div");
  const progress = progressPanel();
  const why = whyPanel();
  const lanes = lanePanel();
  const latency = latencyPanel();
  const errors = errorPanel({ id, context, after: () => refresh() });
  const history = historyPanel({ id, context });
  const results = resultPanel({ id, context });
  let last = null;
  let refresh = () => {};
  context.head(el("span", { class: "mono" }, id), "");
  root.append(problem, el("div", { class: "grid wide-first" }, progress.node, why.node), lanes.node,
    el("div", { class: "grid" }, el("div", { class: "stack" }, latency.node, results.node), el("div", { class: "stack" }, errors.node, history.node)));

  async function read(stop) {
    const found = await get(path, { signal: stop });
    const isNew = !last || stateOf(last) !== stateOf(found) || last.priority !== found.priority || last.limit !== found.limit;
    last = found;
    show(problem);
    if (isNew) {
      context.head([el("a", { class: "back", href: "#/requests", "aria-label": "All requests", title: "All requests" }, icon("back")), el("span", { class: "mono" }, id)],
        badge(stateOf(found)), ...actionButtons({ request: found, context, after: () => refresh() }));
    }
    progress.update(found);
    results.update(found);
    const isFirst = !lanes.after();
    const leases = await get(`${path}/leases`, { query: { after: lanes.after() }, signal: stop });
    setNow(leases.now_ms);
    lanes.update(found, leases);
    latency.update(leases.settled);
    history.update(found, isFirst && leases.is_whole && (leases.settled[0]?.began_ms ?? leases.held[0]?.since_ms));
  }
  async function readMore(stop) {
    if (last?.ended_ms) why.update(last, null);
    else {
      const found = await get(`${path}/why`, { signal: stop });
      setNow(found.now_ms);
      why.update(found.request, found);
      progress.expect(found.estimate.ends_ms);
    }
    await errors.read(stop);
    await history.read(stop);
  }
  const onProblem = (error) => show(problem, notice(error.message));
  refresh = every(() => (last?.ended_ms ? ENDED_MS : LIVE_MS), read, { signal, onProblem });
  every(() => (last?.ended_ms ? ENDED_MS : SLOW_MS), readMore, { signal, onProblem });
}

function progressPanel() {
  const seen = []; // [ms, ended] of the last half minute
  let ends = null;
  const bar = el("div");
  const share = el("div", { class: "huge" });
  const figures = el("dl", { class: "figures" });
  const node = panel("Progress", el("div", { class: "stack" }, el("div", { class: "row spread" }, share, el("ul", { class: "legend shapes" },
    ["done", "held", "dead", "cancelled"].map((name) => el("li", {}, el("i", { class: name }), name === "held" ? "at work" : name)))), bar, figures));

  function rate(ended) {
    const at = Date.now();
    seen.push([at, ended]);
    while (seen.length > 2 && seen[0][0] < at - 30_000) seen.shift();
    const [from, before] = seen[0];
    return at - from > 900 ? ((ended - before) * 1000) / (at - from) : null;
  }
  function expectation(one, perSecond) {
    if (one.ended_ms) return ["Took", span(one.ended_ms - one.submitted_ms), null];
    const own = perSecond > 0 ? now() + (one.left / perSecond) * 1000 : null;
    const at = ends ?? own;
    return ["Ends", at ? when(at) : "unknown", at ? (ends ? "by the pace of the workers" : "by its pace on this page") : "nothing to judge by yet"];
  }
  return {
    node,
    expect: (ms) => (ends = ms),
    update(one) {
      const ended = one.done + one.dead + one.cancelled;
      const perSecond = one.ended_ms ? null : rate(ended);
      const [name, value, note] = expectation(one, perSecond);
      show(share, el("b", {}, percent(one.total ? ended / one.total : one.ended_ms ? 1 : 0)), el("span", { class: "muted" }, ` ${number(ended)} of ${number(one.total)}${one.open ? " so far: more may come" : ""}`));
      show(bar, meter(one, { large: true }));
      show(figures, figure("Done", compact(one.done)), figure("Dead", el("span", { class: one.dead ? "bad" : null }, compact(one.dead))),
        figure("Left", compact(one.left)),
        !one.ended_ms && figure("Workers", [String(one.held), el("span", { class: "muted" }, ` / ${one.limit}`)]),
        figure("Priority", String(one.priority)),
        !one.ended_ms && figure("Pace", perSecond === null ? "–" : `${perSecond >= 10 ? compact(perSecond) : perSecond.toFixed(1)}/s`),
        one.failures > 0 && figure("Failed attempts", compact(one.failures), one.timeouts > 0 && `${compact(one.timeouts)} took too long`),
        figure(name, value, note));
    },
  };
}

function whyPanel() {
  const body = el("div", { class: "stack" });
  const title = el("h2", {}, "Why it waits");
  const node = el("section", { class: "panel" }, el("header", {}, title), el("div", { class: "body" }, body));
  return {
    node,
    update(one, found) {
      show(title, one.ended_ms ? "Its end" : one.held ? "What holds it up" : "Why it waits");
      if (!found || one.ended_ms) {
        show(body, el("p", {}, "It has ended ", when(one.ended_ms), one.reason ? [": ", el("b", {}, one.reason)] : "", "."));
        return;
      }
      const first = found.causes[0];
      show(body,
        found.causes.length === 0 && el("p", { class: "muted" }, "Nothing holds it up."),
        first && el("p", { class: "lead" }, sentence(first.text)),
        el("ul", { class: "causes" }, found.causes.slice(1).map((cause) => el("li", {}, sentence(cause.text)))),
        el("dl", { class: "facts small" },
          found.place !== null && [el("dt", {}, "Place in the lanes"), el("dd", {}, `${found.place_is_exact ? "" : "at least "}${number(found.place)}`)],
          found.estimate.starts_ms > 0 && [el("dt", {}, "Starts"), el("dd", {}, when(found.estimate.starts_ms))],
          found.estimate.why_not ? [el("dt", {}, "No estimate"), el("dd", {}, found.estimate.why_not)]
            : [el("dt", {}, "The queue's workers"), el("dd", {}, `${number(found.estimate.units)} calls concurrently, ${compact(found.estimate.per_s)} sub-requests/s`)]));
    },
  };
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
