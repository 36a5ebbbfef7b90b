// The tasks: pace, failures, durations, what waits, runs and is dead, those first that need a person.
import { get } from "../parts/api.js";
import { notice, nothing, taskHref } from "../parts/bits.js";
import { button, el, show } from "../parts/dom.js";
import { compact, counted, number, setNow, span, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { table } from "../parts/table.js";
import { longCallPanel } from "./queue/longcalls.js";

const READ_MS = 4000;
const BY = [["By task", "task"], ["By release", "release"]];
const OTHER = "other"; // sums up the tasks beyond 200

export function mount(root, context) {
  const { signal } = context;
  let found = null;
  let text = context.query.get("q") ?? "";
  let by = context.query.get("by") === "release" ? "release" : "task";
  let refresh = () => {};
  const problem = el("div");
  const releases = el("p", { class: "muted small" });
  const rest = el("p", { class: "muted small" });
  const calls = longCallPanel(context, () => refresh());
  const filter = el("input", { type: "search", "data-filter": true, value: text, placeholder: "task or release", "aria-label": "Filter", oninput: () => {
    text = filter.value;
    keep();
    draw();
  } });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Rows" });
  const empty = () => nothing("tasks", "No task was called", "A task is a function of an app: ", el("code", {}, "@app.task"), ".");
  const key = (one) => JSON.stringify([one.task, one.release]);
  const tables = {
    task: table({ caption: "Tasks", key, signal, columns: [NAME, ...NOW, ...MEASURED], empty: empty() }),
    release: table({ caption: "Tasks by release", key, signal, columns: [NAME, RELEASE, ...MEASURED], empty: empty() }),
  };
  context.head("Tasks", null, filter);
  root.append(problem, calls.node, el("div", { class: "row spread" }, chips, releases), el("section", { class: "panel" }, tables.task.node, tables.release.node), rest);

  function keep() {
    context.setQuery({ q: text, by: by === "task" ? "" : by });
  }
  function choose(name) {
    by = name;
    found = null;
    keep();
    drawChips();
    refresh();
  }
  function drawChips() {
    show(chips, BY.map(([words, name]) => button(words, () => choose(name), { kind: "plain small chip", "aria-pressed": String(by === name) })));
    for (const [name, { node }] of Object.entries(tables)) node.hidden = name !== by;
  }
  function draw() {
    if (!found) return;
    const wanted = text.toLowerCase();
    tables[by].set(found.tasks.filter((one) => [one.task, one.release ?? ""].some((name) => name.toLowerCase().includes(wanted))));
  }
  async function read(stop) {
    const asked = by;
    const page = await get("v1/tasks", { query: { by: asked }, signal: stop });
    if (asked !== by) return;
    found = page;
    setNow(page.now_ms);
    show(problem);
    calls.set(page.long_calls);
    const [newest] = page.releases;
    show(releases, newest && ["The newest release is ", el("b", {}, newest.name), ", its first worker began ", when(newest.first_ms), "."]);
    show(rest, [page.more > 0 && `${counted(page.more, "more task")} with less to do are not listed. `,
      !page.is_exact && "What waits, runs and is dead is an estimate: a part of the requests was read, or some call several tasks."]);
    draw();
  }
  drawChips();
  refresh = every(READ_MS, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
}

const none = (text) => el("span", { class: "muted" }, text);
const count = (value) => (value ? compact(value) : none("0"));
const time = (ms) => (ms === null ? none("–") : span(ms));

const NAME = {
  label: "Task", phone: "title", kind: "wide",
  cell: (one) => [one.task === OTHER ? el("b", {}, "other tasks") : el("a", { class: "mono", href: taskHref(one.task) }, one.task), needs(one)],
};
const RELEASE = { label: "Release", phone: "side", kind: "tight", cell: (one) => (one.release === null ? none("–") : one.release) };
const NOW = [
  { label: "Waiting", kind: "right", cell: (one) => count(one.waiting) },
  { label: "Running", kind: "right", cell: (one) => count(one.running) },
  { label: "Dead", kind: "right", cell: (one) => (one.dead && one.task !== OTHER ? el("a", { class: "bad", href: deadHref(one.task) }, compact(one.dead)) : count(one.dead)) },
];
const MEASURED = [
  { label: "Pace", kind: "right", cell: (one) => (one.per_s ? `${paceOf(one.per_s)}/s` : none("–")) },
  { label: "Failed lately", kind: "right", cell: (one) => (one.recent_failed ? el("span", { class: "bad" }, `${compact(one.recent_failed)} of ${compact(one.recent)}`) : count(0)) },
  { label: "Median", kind: "right", cell: (one) => time(one.p50_ms) },
  { label: "99 %", kind: "right", cell: (one) => time(one.p99_ms) },
  { label: "Slowest", kind: "right", cell: (one) => time(one.slowest_ms) },
  { label: "Done", kind: "right", phone: "off", cell: (one) => [count(one.done), one.failed > 0 && el("div", { class: "small muted" }, `${compact(one.failed)} failed`)] },
];

const deadHref = (task) => `#/dead?q=${encodeURIComponent(`task:${/\s/.test(task) ? `"${task}"` : task}`)}`;
const paceOf = (value) => (value < 10 ? number(Math.round(value * 100) / 100) : compact(value));

/** Returns what needs a person besides what the columns show. */
function needs(one) {
  if (!one.long_calls) return null;
  return el("div", { class: "small warn" }, `${counted(one.long_calls, "call")} ${one.long_calls === 1 ? "runs" : "run"} unusually long`);
}
