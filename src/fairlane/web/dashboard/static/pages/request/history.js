// What happened to a request, oldest first: its own times, and the changes in the audit trail.
import { panel } from "../../parts/bits.js";
import { el, show } from "../../parts/dom.js";
import { clock, counted, now, when } from "../../parts/format.js";

export function historyPanel({ id, context }) {
  const list = el("ol", { class: "history" });
  let changes = [];
  let request = null;
  function draw() {
    if (!request) return;
    const events = [
      [request.submitted_ms, "Submitted", counted(request.total, "sub-request")],
      ...changes,
      request.ended_ms && [request.ended_ms, request.state === "done" ? "Done" : "Ended", request.reason],
    ].filter((one) => one && one[0]).sort((a, b) => a[0] - b[0]);
    show(list, events.map(([at, title, text]) => el("li", { class: at > now() ? "later" : null }, el("div", { class: "row spread" }, el("b", {}, title), el("span", { class: "muted small", title: clock(at) }, when(at))),
      text && el("div", { class: "small muted" }, text))));
  }
  return {
    node: panel("History", list),
    update(one) { request = one; draw(); },
    async read() {},
  };
}
