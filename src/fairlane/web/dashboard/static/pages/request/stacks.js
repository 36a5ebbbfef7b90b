// What the calls of a request do now: a dialog with their stacks, from which one call can be ended.
import { part, post } from "../../parts/api.js";
import { button, el } from "../../parts/dom.js";
import { counted, span } from "../../parts/format.js";
import { ask, inform, toast, toastProblem } from "../../parts/messages.js";

/** Shows the stacks of a request's calls; `after` is called when one of them was ended. */
export async function showStacks({ id, context, after }) {
  toast("The workers are asked …");
  try {
    const { workers } = await post(`v1/requests/${part(id)}/stacks`);
    const mayKill = context.can("operate");
    const rows = workers.flatMap((worker) => [
      worker.problem ? el("p", { class: "notice" }, worker.problem) : null,
      ...worker.calls.map((call) => callBox(call, mayKill ? () => end(call, after) : null)),
      worker.more ? el("p", { class: "muted small" }, `and ${counted(worker.more, "more call")}`) : null,
    ].filter(Boolean));
    inform("Calls that run now", rows.length ? el("div", { class: "stack" }, rows) : el("p", {}, "No call of this request runs now."), "help");
  } catch (error) {
    toastProblem(error);
  }
}

function callBox(call, kill) {
  const what = call.index === null ? counted(call.count, "sub-request") : `Sub-request ${call.index}`;
  const task = call.task ? `, ${call.call ?? call.task}` : "";
  return el("section", {},
    el("div", { class: "row spread" },
      el("b", {}, `${what}${task}`),
      kill && call.index !== null ? button("End this call …", kill, { kind: "small danger" }) : null),
    el("p", { class: "muted small" }, `runs for ${span(call.ran_ms)}, attempt ${call.attempt} of ${call.attempts}, worker ${call.worker}, process ${call.process}${call.thread ? `, thread ${call.thread}` : ""}`),
    call.problem ? el("p", { class: "notice" }, call.problem) : null,
    el("pre", { class: "code", tabindex: 0, "aria-label": `Stack of ${what}` }, call.lines.length ? call.lines.map((line) => line.trim()).join("\n") : "no line of your code: it has just begun or ended"));
}

async function end(call, after) {
  const others = call.beside ? ` ${counted(call.beside, "other call")} in process ${call.process} may be ended, too, and then run again, uncharged.` : "";
  const killed = await ask({
    title: `End sub-request ${call.index}?`, action: "End the call", danger: true,
    effect: `Its process is killed if it does not end when it is cancelled.${others}`,
    fields: [{ name: "verdict", label: "Its attempt", value: "charge", choices: [["charge", "is charged; the next one has its backoff"], ["free", "is not charged; it runs again"], ["dead", "was the last one: it is dead"]] }],
    act: ({ verdict }) => post(`v1/requests/${part(call.id)}/kill`, { index: call.index, verdict, others: call.beside > 0 }),
  });
  if (!killed) return;
  toast(`Sub-request ${call.index} was ended after ${span(killed.ran_ms)}`);
  after();
}
