// One request: its progress, why it waits, who works on it, its failures, its history, its results.
import { get, part } from "../parts/api.js";
import { endedShare, figure, meter, notice, panel, stateBadge, taskLine } from "../parts/bits.js";
import { el, icon, show } from "../parts/dom.js";
import { compact, now, number, setNow, span, when } from "../parts/format.js";
import { every, stream } from "../parts/live.js";
import { requestHref } from "../shell/router.js";
import { keyHref } from "./keys.js";
import { actionButtons, actionsOf } from "./request/actions.js";
import { errorPanel } from "./request/errors.js";
import { historyPanel } from "./request/history.js";
import { lanePanel } from "./request/lanes.js";
import { latencyPanel } from "./request/latency.js";
import { resultPanel } from "./request/results.js";

const DRAW_MS = 1000; // leases that are held grow longer meanwhile
const NEVER_MS = 2 ** 50; // a gate that waits for other requests opens later than this

export function mount(root, context) {
  const { id, signal } = context;
  const path = `v1/requests/${part(id)}`;
  const problem = el("div");
  const progress = progressPanel();
  const why = whyPanel();
  const lanes = lanePanel();
  const latency = latencyPanel();
  const parts = reader({ signal, onProblem });
  const errors = errorPanel({ id, context, after: () => parts.again("errors", "history") });
  const history = historyPanel({ id, context });
  const results = resultPanel({ id, context });
  let last = null;
  let call = null; // in its short form, which the stream does not have
  let leases = null; // as of the last read
  const back = el("a", { class: "back", href: "#/requests", "aria-label": "All requests", title: "All requests" }, icon("back"));
  const title = [back, el("span", { class: "mono" }, id)];
  const state = el("span");
  context.head(title, state);
  const whole = [el("div", { class: "grid wide-first" }, progress.node, why.node), lanes.node,
    el("div", { class: "grid" }, el("div", { class: "stack" }, latency.node, results.node), el("div", { class: "stack" }, errors.node, history.node))];
  root.append(problem);

  function onProblem(error) {
    show(problem, notice(error.detail ?? error.message));
  }
  function draw(found) {
    const isNew = !last || actionsOf(last) !== actionsOf(found); // otherwise an open menu stays open
    last = found = { ...found, call };
    show(problem);
    show(state, stateBadge(found));
    if (isNew) context.head(title, state, ...actionButtons({ id, latest: () => last, context, after: () => parts.again("history") }));
    progress.update(found);
    why.describe(found);
    results.update(found);
  }
  async function readLeases(stop) {
    const isFirst = !lanes.after();
    const found = await get(`${path}/leases`, { query: { after: lanes.after() }, signal: stop });
    setNow(found.now_ms);
    leases = found;
    lanes.update(last, found);
    latency.update(found.settled);
    history.update(last, isFirst && found.is_whole && (found.settled[0]?.began_ms ?? found.held[0]?.since_ms));
  }
  function tick() {
    if (!last || last.ended_ms) return;
    progress.update(last);
    if (leases?.held.length) lanes.update(last, { ...leases, settled: [] });
  }
  get(path, { signal }).then((first) => {
    ({ call } = first);
    root.append(...whole); // not of a request that does not exist
    draw(first);
    stream(`${path}/live`, {
      signal, onProblem,
      on: {
        request({ request, why: found, now_ms: at }) {
          if (found) setNow(at);
          draw(request);
          why.update(request, found);
          if (found) progress.expect(found.estimate.ends_ms);
          parts.see("leases", [request.held, request.done, request.dead, request.cancelled, request.state], readLeases);
          parts.see("errors", [request.dead, request.failures, request.timeouts], errors.read);
          parts.see("history", [request.state, request.limit, request.priority, request.rates, request.deadline_ms, request.share], history.read);
        },
      },
    });
    every(DRAW_MS, tick, { signal });
  }).catch((error) => error.name !== "AbortError" && onProblem(error));
}

/**
 * Reads parts of the page when what they depend on has changed, one at a time: see(name, values, read) compares the
 * values with those before, again(...names) reads in any case.
 */
function reader({ signal, onProblem }) {
  const seen = new Map(); // name -> {values, read}
  const due = new Set();
  let running = false;

  async function run() {
    if (running) return;
    running = true;
    while (due.size && !signal.aborted) {
      const [name] = due;
      due.delete(name);
      try {
        await seen.get(name).read(signal);
      } catch (error) {
        if (error.name !== "AbortError") onProblem(error);
      }
    }
    running = false;
  }
  return {
    see(name, values, read) {
      const text = JSON.stringify(values);
      if (seen.get(name)?.values === text) return;
      seen.set(name, { values: text, read });
      due.add(name);
      run();
    },
    again(...names) {
      for (const name of names) if (seen.has(name)) due.add(name);
      run();
    },
  };
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
      show(share, one.is_open
        ? [el("b", {}, number(ended)), el("span", { class: "muted" }, ` of ${number(one.total)} so far: more may come`)]
        : [el("b", {}, endedShare(one)), el("span", { class: "muted" }, ` ${number(ended)} of ${number(one.total)}`)]);
      show(bar, meter(one, { large: true }));
      show(figures, figure("Done", compact(one.done)), figure("Dead", el("span", { class: one.dead ? "bad" : null }, compact(one.dead))),
        figure("Left", compact(one.left)),
        one.left_out > 0 && figure("Left out", compact(one.left_out), "repeats"),
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
  const facts = el("dl", { class: "facts small own-facts" });
  const title = el("h2", {}, "Why it waits");
  const node = el("section", { class: "panel" }, el("header", {}, title), el("div", { class: "body" }, body, facts));
  return {
    node,
    /** Shows what its producer has chosen. */
    describe(one) {
      show(facts, [
        taskLine(one) && [Object.keys(one.tasks).length > 1 ? "Tasks" : "Task", taskLine(one)],
        one.tenant && ["Tenant", `${one.tenant}${one.share > 1 ? `, share ${one.share}` : ""}`],
        one.tags.length > 0 && ["Tags", one.tags.join(", ")],
        Object.keys(one.limits).length > 0 && ["Keys", Object.entries(one.limits).map(([name, limit], at) => [at ? ", " : "", el("a", { class: "mono", href: keyHref(name) }, name), ` (${number(limit)})`])],
        one.rates.length > 0 && ["Rate", one.rates.join("; ")],
        one.opens_ms > now() && one.opens_ms < NEVER_MS && ["Opens", when(one.opens_ms)],
        one.deadline_ms && ["Deadline", when(one.deadline_ms)],
        one.time_limit_ms && ["Time limit of a call", span(one.time_limit_ms)],
        one.durable > 0 && ["Replicas that confirm it", String(one.durable)],
      ].filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    },
    update(one, found) {
      show(title, one.ended_ms ? "Its end" : one.held ? "What holds it up" : "Why it waits");
      if (!found || one.ended_ms) {
        show(body, el("p", {}, "It has ended ", when(one.ended_ms), one.reason ? [": ", el("b", {}, one.reason)] : "", "."));
        return;
      }
      const first = found.causes[0], lane = found.lane_place;
      show(body,
        found.causes.length === 0 && el("p", { class: "muted" }, "Nothing holds it up."),
        first && el("p", { class: "lead" }, sentence(first.text)),
        el("ul", { class: "causes" }, found.causes.slice(1).map((cause) => el("li", {}, sentence(cause.text)))),
        el("dl", { class: "facts small" },
          lane && !lane.is_lost && [el("dt", {}, "Place in the lanes"), el("dd", {}, `${lane.is_exact ? "" : "at least "}${number(lane.place)}`)],
          found.estimate.starts_ms > 0 && [el("dt", {}, "Starts"), el("dd", {}, when(found.estimate.starts_ms))],
          found.estimate.why_not ? [el("dt", {}, "No estimate"), el("dd", {}, found.estimate.why_not)]
            : [el("dt", {}, "The queue's workers"), el("dd", {}, `${number(found.estimate.units)} calls concurrently, ${compact(found.estimate.per_s)} sub-requests/s`)]));
    },
  };
}

/** Returns a cause as a sentence; one that begins with the name of a worker keeps it. */
function sentence(text) {
  const first = /^[a-z]+[,:]? /.test(text) ? text.charAt(0).toUpperCase() : text.charAt(0);
  return first + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
