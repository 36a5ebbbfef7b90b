// The changes of one request or of many. Each first says what will happen, and asks.
import { part, patch, post, remove } from "../../parts/api.js";
import { menu } from "../../parts/bits.js";
import { button, el } from "../../parts/dom.js";
import { counted, number } from "../../parts/format.js";
import { onKey } from "../../parts/keys.js";
import { ask, toast } from "../../parts/messages.js";
import { showStacks } from "./stacks.js";

const UNITS = { s: 1, m: 60, h: 3600, d: 86_400 };

/** Returns seconds of a text as 90s, 30m or 2h; "" and 0 are 0. Throws an error of one sentence. */
export function seconds(text) {
  const value = text.trim();
  if (value === "" || value === "0") return 0;
  const match = /^(\d+(?:\.\d+)?)\s*([smhd])$/.exec(value);
  if (!match) throw new Error(`${value} is no length of time: write 90s, 30m, 2h or 1d.`);
  return Number(match[1]) * UNITS[match[2]];
}

/** Returns what a field of a dialog changes, as PATCH takes it. */
export const CHANGES = {
  limit: {
    title: "Set the limit", action: "Set the limit", done: "The limit is set",
    field: (one) => ({ name: "limit", label: "The most workers that hold it", type: "number", min: 1, max: 10_000, required: true, value: one?.limit ?? "" }),
    effect: "Workers above a lower limit finish what they hold. A higher limit takes more workers as soon as they are free.",
    body: ({ limit }) => ({ limit: whole(limit, "the limit") }),
  },
  priority: {
    title: "Set the priority", action: "Set the priority", done: "The priority is set",
    field: (one) => ({ name: "priority", label: "Priority", type: "number", min: 0, max: 99, required: true, value: one?.priority ?? "", hint: "0 is the most urgent, 99 the least." }),
    effect: "What has not started moves to another lane. What workers hold goes on.",
    body: ({ priority }) => ({ priority: whole(priority, "the priority") }),
  },
  rate: {
    title: "Set the rate", action: "Set the rate", done: "The rate is set",
    field: (one) => ({ name: "rate", label: "Rate", value: one?.rates?.[0]?.split(",")[0] ?? "", placeholder: "100/s", hint: "As 100/s, 30/m or 5000/h." }),
    effect: "No more sub-requests start in this time than the rate says.",
    body: ({ rate }) => ({ rate: rate.trim() }),
  },
  deadline: {
    title: "Set the deadline", action: "Set the deadline", done: "The deadline is set",
    field: () => ({ name: "deadline", label: "From now on", placeholder: "2h", hint: "As 90s, 30m, 2h or 1d. Empty: no deadline." }),
    effect: "What has not ended by then becomes dead. Without a deadline it may take as long as it needs.",
    body: ({ deadline }) => ({ deadline: seconds(deadline) }),
  },
};

function whole(value, name) {
  if (!Number.isInteger(value)) throw new Error(`Write a whole number as ${name}.`);
  return value;
}

/** Returns which actions a request allows: "running", "paused" or "over". */
export function actionsOf(request) {
  if (request.ended_ms || ["cancelling", "expiring"].includes(request.state)) return "over";
  return request.state === "paused" ? "paused" : "running";
}

/** Returns the buttons for a request: those that its state and the caller's role allow. `latest` returns it as of now. */
export function actionButtons({ id, latest, context, after }) {
  const path = `v1/requests/${part(id)}`;
  const stacks = button("Stacks", () => showStacks({ id, context, after }), { icon: "search", label: "Show what the calls of this request do now" });
  const isRunning = actionsOf(latest()) !== "over" || !latest().ended_ms;
  if (!context.can("operate")) return [isRunning && stacks, el("span", { class: "muted small" }, "You may look, not change.")].filter(Boolean);

  async function run(options) {
    const done = await ask(options);
    if (!done) return;
    toast(options.done);
    after();
  }
  const acting = (optionsOf) => () => run(optionsOf(latest())); // the figures in a question are those of now
  const change = (name) => acting((request) => ({ ...CHANGES[name], fields: [CHANGES[name].field(request)], act: (values) => patch(path, CHANGES[name].body(values)) }));
  const pause = acting((request) => ({
    title: "Pause this request?", action: "Pause", done: "The request is paused",
    effect: `Nothing more of it starts until it is resumed. Workers finish what they hold now${request.held ? `: ${counted(request.held, "permit")}` : ""}.`,
    act: () => post(`${path}/pause`),
  }));
  const resume = acting((request) => ({
    title: "Resume this request?", action: "Resume", done: "The request goes on",
    effect: `Workers take its ${counted(request.left, "sub-request")} again, up to ${counted(request.limit, "worker")} concurrently.`,
    act: () => post(`${path}/resume`),
  }));
  const cancel = acting((request) => ({
    title: "Cancel this request?", action: "Cancel the request", danger: true, done: "The request is cancelled",
    effect: `${number(request.left)} of its ${counted(request.total, "sub-request")} ${request.left === 1 ? "has" : "have"} not ended and will not run. Results so far stay. This cannot be undone.`,
    fields: [{ name: "reason", label: "Reason", value: "", placeholder: "cancelled in the dashboard", hint: "Everyone who waits for the request sees it." }],
    act: ({ reason }) => post(`${path}/cancel`, { reason: reason.trim() || "cancelled in the dashboard" }),
  }));
  const erase = acting((request) => ({
    title: "Delete this request?", action: "Delete the request", danger: true, done: "The request is deleted",
    effect: `Its ${counted(request.done, "result")} and ${counted(request.dead, "dead sub-request")} are deleted with their bodies.${request.ended_ms ? "" : " It is cancelled first."} This cannot be undone.`,
    act: async () => {
      await remove(path, { query: { cancel: request.ended_ms ? null : "true" } });
      location.hash = "#/requests";
    },
  }));
  const actions = actionsOf(latest());
  const isPaused = actions === "paused";
  const isOver = actions === "over";
  const { signal } = context;
  if (!context.hasRequestKeys) {
    context.hasRequestKeys = true;
    const group = "This request";
    for (const [key, name, label] of [["p", "pause", "Pause or resume"], ["l", "limit", "Set the limit"], ["c", "cancel", "Cancel"]]) {
      onKey(key, label, () => context.requestActions[name]?.(), { signal, group });
    }
  }
  context.requestActions = isOver ? {} : { pause: isPaused ? resume : pause, limit: change("limit"), cancel };
  return [
    isRunning && stacks,
    !isOver && button(isPaused ? "Resume" : "Pause", isPaused ? resume : pause, { icon: isPaused ? "play" : "pause" }),
    !isOver && menu("Change", [["Limit …", change("limit")], ["Priority …", change("priority")], ["Rate …", change("rate")], ["Deadline …", change("deadline")]]),
    !isOver && button("Cancel", cancel, { kind: "danger", icon: "cross" }),
    button("Delete", erase, { kind: "danger", icon: "trash" }),
  ].filter(Boolean);
}
