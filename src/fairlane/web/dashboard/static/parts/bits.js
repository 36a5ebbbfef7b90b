// Small things that many pages show.
import { button, el, icon } from "./dom.js";
import { compact, number, percent } from "./format.js";

const OPEN_FILLS = 90; // percent of a bar that may still grow

const STATES = {
  active: ["busy", "play"],
  running: ["busy", "play"],
  working: ["busy", "play"],
  waiting: ["", "clock"],
  scheduled: ["", "clock"],
  paused: ["warn", "pause"],
  cancelling: ["warn", "dash"],
  expiring: ["warn", "clock"],
  done: ["good", "check"],
  repaired: ["good", "check"],
  partly_failed: ["warn", "alert"],
  failed: ["bad", "cross"],
  alive: ["good", "check"],
  cancelled: ["", "dash"],
  dead: ["bad", "cross"],
  lost: ["bad", "cross"],
  late: ["bad", "cross"],
};

/** Returns a state as a word with a shape and a colour. */
export function badge(state, text = state) {
  const [kind, shape] = STATES[state] ?? ["", "dash"];
  return el("span", { class: `badge ${kind}`.trim() }, icon(shape), text);
}

/** Returns the state that people ask for: how a request or a run came out; an active one works, or waits for a worker. */
export const stateOf = (one) => one.outcome ?? (one.state === "active" ? (one.held ? "working" : "waiting") : one.state);

/** Returns the badge of a request or a run: `done, 57 dead` if some sub-requests are dead. It has the words of outcome_words (model.py). */
export const stateBadge = (one, state = stateOf(one), dead = one.dead) =>
  badge(state, { partly_failed: `done, ${number(dead)} dead`, repaired: "done, repaired" }[state] ?? state);

/** Returns the page of the requests with calls of a task. */
export const taskHref = (name) => `#/requests?q=${encodeURIComponent(`task:${/\s/.test(name) ? `"${name}"` : name}`)}`;

const NAMED = 3; // tasks of one request

/** Returns the only call of a request, or its tasks in the words of tasks_words (task_names.py); null if it names none. */
export function taskLine({ tasks, call = null }) {
  const names = Object.keys(tasks);
  if (!names.length) return null;
  const link = (name, text) => el("a", { href: taskHref(name) }, text);
  const parts = names.length === 1 ? [link(names[0], call ?? names[0])]
    : names.slice(0, NAMED).map((name, place) => [place > 0 && ", ", link(name, name), tasks[name] !== null && ` (${number(tasks[name])})`]);
  return el("div", { class: "task-line small" }, parts, names.length > NAMED && ` and ${number(names.length - NAMED)} more`);
}

/** Returns a bar of what is done, held, dead and cancelled of a total. While more may come, it is not full. */
export function meter({ total, done = 0, held = 0, dead = 0, cancelled = 0, is_open = false }, { large = false } = {}) {
  const share = (count) => (total ? `${((is_open ? OPEN_FILLS : 100) * count) / total}%` : "0");
  const parts = { done, dead, cancelled, held: Math.min(held, Math.max(0, total - done - dead - cancelled)) };
  const words = Object.entries(parts).filter(([, count]) => count).map(([name, count]) => `${number(count)} ${name}`);
  return el("div", { class: large ? "meter large" : "meter", role: "img", "aria-label": `${words.join(", ") || "0 done"} of ${number(total)}${is_open ? " so far" : ""}` },
    Object.entries(parts).map(([name, count]) => count > 0 && el("i", { class: name, style: { width: share(count) } })));
}

/** Returns the share of a request's sub-requests that have ended; their number while more may come, as there is no total yet. */
export const endedShare = (one) => {
  const ended = one.done + one.dead + one.cancelled;
  return one.is_open ? compact(ended) : percent(one.total ? ended / one.total : one.ended_ms ? 1 : 0);
};

/** Returns what is shown where there is nothing. */
export const nothing = (name, title, ...more) =>
  el("div", { class: "empty" }, icon(name), el("b", {}, title), more.length ? el("p", {}, more) : null);

/** Returns a panel with a heading. */
export function panel(title, ...content) {
  return el("section", { class: "panel" }, title && el("header", {}, el("h2", {}, title)), el("div", { class: "body" }, content));
}

/** Returns a number with its name, for a list of figures (`dl.figures`). */
export const figure = (name, value, note = null) =>
  el("div", { class: "figure" }, el("dt", {}, name), el("dd", {}, value, note && el("div", { class: "small" }, note)));

/** Returns a notice of a problem. */
export const notice = (text, bad = true) => el("p", { class: bad ? "notice bad" : "notice", role: "status" }, text);

/** Returns a button that opens a list of actions: [[text, act], ...]. Escape and a click elsewhere close it. */
export function menu(label, items, kind = "") {
  const close = () => (node.open = false);
  const list = el("div", { class: "menu-list" }, items.map(([text, act]) => button(text, () => {
    close();
    act();
  }, { kind: "plain" })));
  const node = el("details", { class: "menu", onkeydown: (event) => {
    if (event.key === "Escape") {
      close();
      node.querySelector("summary").focus();
    }
  }, onfocusout: (event) => {
    if (!node.contains(event.relatedTarget)) close();
  } }, el("summary", { class: `button ${kind}`.trim() }, label, icon("down")), list);
  return node;
}
