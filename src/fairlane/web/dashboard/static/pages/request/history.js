// What happened to a request, oldest first: its own times, and the changes in the audit trail.
import { get } from "../../parts/api.js";
import { panel } from "../../parts/bits.js";
import { el, show } from "../../parts/dom.js";
import { clock, counted, now, number, when } from "../../parts/format.js";
import { actionText } from "./trail.js";

const ENDED = { done: "Done", repaired: "Repaired", partly_failed: "Done", failed: "Failed", cancelled: "Cancelled" };
const MOST = 500; // entries of the trail that are searched

export function historyPanel({ id, context }) {
  const list = el("ol", { class: "history" });
  let changes = [];
  let first = 0; // when the first lease began that is known
  let request = null;

  function draw() {
    if (!request) return;
    const events = [
      [request.submitted_ms, "Submitted", counted(request.total, "sub-request")],
      ...(request.repairs ?? []).map((one) => [one.at_ms, "Reopened", `${counted(one.count, "dead sub-request")} requeued${one.by ? ` by ${one.by}` : ""}`]),
      request.opens_ms > 0 && request.opens_ms < 2 ** 50 && [request.opens_ms, request.opens_ms > now() ? "Opens" : "Opened", "nothing of it starts before"],
      first && [first, "First start", ""],
      ...changes,
      request.deadline_ms > 0 && [request.deadline_ms, "Deadline", "what has not ended becomes dead"],
      request.ended_ms && [request.ended_ms, ENDED[request.outcome] ?? "Ended", request.outcome === "failed" || request.outcome === "partly_failed" ? `${counted(request.dead, "sub-request")} of ${number(request.total)} dead` : request.reason],
    ].filter(Boolean).sort((a, b) => a[0] - b[0]);
    show(list, events.map(([at, title, text]) => el("li", { class: at > now() ? "later" : null },
      el("div", { class: "row spread" }, el("b", {}, title), el("span", { class: "muted small", title: clock(at) }, when(at))),
      text && el("div", { class: "small muted" }, text))));
  }
  return {
    node: panel("History", list),
    update(one, begun) {
      request = one;
      if (begun) first = first ? Math.min(first, begun) : begun;
      draw();
    },
    async read(signal) {
      if (!context.can("operate")) return;
      const found = await get("v1/audit", { query: { limit: MOST }, signal });
      changes = found.entries.filter((one) => one.object === id && one.status !== null && one.status < 300)
        .map((one) => [one.at_ms, actionText(one.action), `by ${one.who}${one.given ? `: ${one.given}` : ""}`]);
      draw();
    },
  };
}
