// Keeps pages current: a stream of events, or calls at intervals. Both rest while the tab is hidden.
import { address, get } from "./api.js";

const listeners = new Set();
const states = new Map(); // what is open -> live, paused or lost
let last = "";

/** Calls `listener` with live, paused, lost or idle when the state of the page's sources changes, until `signal` aborts. */
export function onLink(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
  listener(summary());
}

function summary() {
  const all = [...states.values()];
  return ["lost", "paused", "live"].find((one) => all.includes(one)) ?? "idle";
}

function report(source, state) {
  if (state) states.set(source, state);
  else states.delete(source);
  const now = summary();
  if (now === last) return;
  last = now;
  for (const listener of listeners) listener(now);
}

/**
 * Listens to server-sent events until `signal` aborts: `on` has a function for each name of an event.
 * The connection closes while the tab is hidden, and opens again with a pause that grows to 15 s.
 */
export function stream(path, { on, query, signal, onProblem = () => {} }) {
  let source = null;
  let timer = 0;
  let pause = 1000;

  function open() {
    if (source || signal.aborted || document.hidden) return;
    source = new EventSource(address(path, query));
    source.addEventListener("open", () => {
      pause = 1000;
      report(stream_, "live");
    });
    source.addEventListener("error", () => {
      again();
      get("v1/me", { signal }).catch(() => null); // an EventSource does not say that the answer was 401
    });
    source.addEventListener("problem", (event) => {
      onProblem(JSON.parse(event.data));
      again();
    });
    source.addEventListener("end", () => again());
    for (const [name, listener] of Object.entries(on)) {
      source.addEventListener(name, (event) => listener(JSON.parse(event.data), event.lastEventId));
    }
  }
  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }
  function again() {
    close();
    if (signal.aborted || document.hidden) return;
    report(stream_, "lost");
    timer = setTimeout(open, pause);
    pause = Math.min(pause * 2, 15_000);
  }
  function turn() {
    if (document.hidden) {
      close();
      report(stream_, "paused");
    } else open();
  }
  const stream_ = {};
  report(stream_, document.hidden ? "paused" : "live");
  document.addEventListener("visibilitychange", turn, { signal });
  signal.addEventListener("abort", () => {
    close();
    report(stream_, null);
  });
  open();
}

/**
 * Calls `task(signal)` now and `ms` milliseconds after it ended, until `signal` aborts; `ms` may be a function.
 * It rests while the tab is hidden, and waits longer after an error. Returns a function that calls it now.
 */
export function every(ms, task, { signal, onProblem = () => {} }) {
  const source = {};
  let timer = 0;
  let running = false;
  let wanted = false;
  let failures = 0;

  async function run() {
    clearTimeout(timer);
    if (signal.aborted || document.hidden) return;
    if (running) {
      wanted = true;
      return;
    }
    running = true;
    try {
      await task(signal);
      failures = 0;
      report(source, "live");
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      report(source, error.status === 0 || error.status >= 500 ? "lost" : "live");
      onProblem(error);
    } finally {
      running = false;
    }
    if (signal.aborted) return;
    const usual = typeof ms === "function" ? ms() : ms;
    const next = wanted ? 0 : Math.min(usual * 2 ** Math.min(failures, 4), Math.max(usual, 15_000));
    wanted = false;
    timer = setTimeout(run, next);
  }
  function turn() {
    if (document.hidden) {
      clearTimeout(timer);
      report(source, "paused");
    } else run();
  }
  report(source, document.hidden ? "paused" : "live");
  document.addEventListener("visibilitychange", turn, { signal });
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    report(source, null);
  });
  run();
  return run;
}
