// Schedules: their next five ticks, and whether they go on.
import { get, part, post, remove } from "../parts/api.js";
import { badge, notice, nothing } from "../parts/bits.js";
import { button, el, show } from "../parts/dom.js";
import { counted, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { ask, toast } from "../parts/messages.js";

export function mount(root, context) {
  const { signal } = context;
  const problem = el("div");
  const list = el("div", { class: "grid" });
  let before = "";
  let refresh = () => {};
  root.append(problem, list);

  async function read(stop) {
    const { schedules } = await get("v1/schedules", { signal: stop });
    show(problem);
    const now = JSON.stringify(schedules) + Math.floor(Date.now() / 10_000);
    if (now === before) return;
    before = now;
    show(list, schedules.length ? schedules.map((one) => card(one, context, () => refresh()))
      : el("section", { class: "panel" }, nothing("schedules", "There is no schedule", "fairlane schedule add makes one; an app's tasks may have their own.")));
  }
  refresh = every(5000, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
}

function card(one, context, after) {
  const isPaused = one.state === "paused";
  const options = Object.entries(one.options).map(([name, value]) => `${name} ${words(value)}`);
  return el("section", { class: "panel", "aria-label": `Schedule ${one.name}` },
    el("header", {}, el("h2", { class: "mono" }, one.name), badge(one.state === "active" ? "scheduled" : one.state, one.state)),
    el("div", { class: "body stack" },
      el("div", {}, el("code", { class: "cron" }, one.cron), el("div", { class: "muted small" }, `${one.tz} · ${counted(one.sub_requests, "sub-request")} a tick${options.length ? ` · ${options.join(", ")}` : ""}${one.of_app ? " · of an app" : ""}`)),
      el("div", {}, el("h3", {}, "Next ticks"),
        isPaused ? el("p", { class: "muted" }, "None: it is paused.")
          : el("ol", { class: "ticks" }, one.next.map((text) => tick(text)))),
      context.can("operate") && el("div", { class: "row" },
        button(isPaused ? "Resume" : "Pause", () => (isPaused ? resume : pause)(one, after), { kind: "small", icon: isPaused ? "play" : "pause" }),
        button("Remove", () => erase(one, after), { kind: "small danger", icon: "trash" }))));
}

function words(value) {
  if (Array.isArray(value)) return value.join(", ");
  return value && typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}=${one}`).join(", ") : value;
}

/** Returns a tick in the zone of its schedule, as the server wrote it, and how far it is. */
function tick(text) {
  const ms = Date.parse(text);
  const [day, clock] = text.split("T");
  const weekday = new Date(`${day}T12:00:00Z`).toLocaleDateString("en-US", { weekday: "short", timeZone: "UTC" });
  return el("li", {}, el("span", { class: "number" }, `${weekday} ${day} ${clock.slice(0, 5)}`), el("span", { class: "muted small" }, when(ms)));
}

async function change(options, done, after) {
  if (!(await ask(options))) return;
  toast(done);
  after();
}

const pause = (one, after) => change({
  title: `Pause ${one.name}?`, action: "Pause", effect: "It submits nothing until it is resumed. Its requests so far go on.",
  act: () => post(`v1/schedules/${part(one.name)}/pause`),
}, "The schedule is paused.", after);

const resume = (one, after) => change({
  title: `Resume ${one.name}?`, action: "Resume", effect: "It submits a request at each tick from now on. What was due meanwhile is not submitted.",
  act: () => post(`v1/schedules/${part(one.name)}/resume`),
}, "The schedule goes on.", after);

const erase = (one, after) => change({
  title: `Remove ${one.name}?`, action: "Remove", danger: true,
  effect: `It is removed, and submits nothing any more. Its requests so far stay.${one.of_app ? " A worker that starts with its app adds it again." : ""}`,
  act: async () => (await remove(`v1/schedules/${part(one.name)}`)) ?? true,
}, "The schedule is removed.", after);
