// Calls that run unusually long: what runs, since when, what is usual, and what shows and ends it.
import { badge } from "../../parts/bits.js";
import { button, el, show } from "../../parts/dom.js";
import { clock, counted, now, span } from "../../parts/format.js";
import { requestHref } from "../../shell/router.js";
import { showStacks } from "../request/stacks.js";

const SHOWN = 5;

/** Returns {node, set(calls, more)}: a panel, which is hidden while there is no such call. */
export function longCallPanel(context, after = () => {}) {
  const body = el("div", { class: "body stack tight" });
  const node = el("section", { class: "panel", hidden: true }, el("header", {}, el("h2", {}, "Calls that run unusually long")), body);
  let before = "";

  function set(calls, more = 0) {
    node.hidden = calls.length === 0;
    const text = JSON.stringify([calls, more]);
    if (text === before || body.contains(document.activeElement)) return;
    before = text;
    const rest = more + Math.max(0, calls.length - SHOWN);
    show(body, calls.slice(0, SHOWN).map((call) => row(call, context, after)), rest > 0 && el("p", { class: "muted small" }, `and ${counted(rest, "more call")}`));
  }
  return { node, set };
}

/** Returns the badge of a request in a list with such a call. */
export const longMark = () => badge("expiring", "long call");

function row(call, context, after) {
  return el("div", { class: "long-call" },
    el("div", { class: "row" }, badge("expiring", `runs for ${span(Math.max(call.ran_ms, now() - call.since_ms))}`),
      el("span", {}, what(call), " of ", el("a", { class: "id", href: requestHref(call.id) }, call.id)),
      button("Stacks", () => showStacks({ id: call.id, context, after }), { kind: "small", label: `Stacks of ${call.id}` })),
    el("p", { class: "small muted" }, `since ${clock(call.since_ms)} on worker ${call.worker}, attempt ${call.attempt}; ${usual(call)}`),
    el("p", { class: "small muted" }, el("code", {}, `fairlane stacks ${call.id}`), " shows where it is",
      call.index !== null && [", ", el("code", {}, `fairlane kill ${call.id} --index ${call.index}`), " ends it"]));
}

/** Returns the words of LongCall.what (call_records.py). */
export function what({ index, task }) {
  const named = index === null ? "a batch" : `sub-request ${index}`;
  return task ? `${named} (${task})` : named;
}

/** Returns the words of LongCall.usual (call_records.py). */
export function usual({ usual_ms: ms, of_task: ofTask }) {
  if (ms === null) return "too few calls have ended to say what is usual";
  return `99 of 100 calls ${ofTask ? "of its task" : "of the queue"} take up to ${span(ms)}`;
}
