// Dead letters: failures of the queue in groups, the requests that have them, and those of one request.
import { get, post } from "../parts/api.js";
import { notice, nothing, panel, stateBadge, taskLine } from "../parts/bits.js";
import { button, el, show } from "../parts/dom.js";
import { compact, counted, number, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { ask, toast } from "../parts/messages.js";
import { table } from "../parts/table.js";
import { deadOfRequest } from "./request/dead.js";
import { drop, failure, requeue } from "./request/errors.js";
import { combo } from "./requests/combo.js";
import { choiceOf, hints, parse } from "./requests/deadfilter.js";
import { FilterError } from "./requests/filter.js";
import { requestHref } from "../shell/router.js";

const READ_MS = 5000;
const MOST_TASKS = 200; // that the filter offers
const CHIPS = [["All", ""], ["Last 10 minutes", "since:10m"], ["Last hour", "since:1h"], ["Last day", "since:24h"]];
const RELEASE_CHIP = ["Since the last release", "since:release"]; // if workers name one

export function mount(root, context) {
  const id = context.query.get("request");
  if (id) return deadOfRequest(root, context, id);
  const { signal } = context;
  const can = context.can("operate");
  const problem = el("div");
  const groups = el("div");
  const rest = el("p", { class: "muted small" });
  let before = "";
  let refresh = () => {};
  let text = context.query.get("q") ?? "";
  let chosen = {};
  let tasks = [];
  let release = null;
  const field = combo({ label: "Filter dead letters", value: text, placeholder: "task:send_mail since:1h error:timeout", hints: (value) => hints(value, tasks), onChange: change });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Common filters" });
  const list = table({
    caption: "Requests with dead sub-requests", key: (row) => row.id, href: (row) => deadHref(row.id), signal,
    empty: nothing("check", "No request has dead sub-requests"),
    columns: [
      { label: "Request", phone: "title", kind: "wide", cell: (row) => [el("a", { class: "mono", href: deadHref(row.id) }, row.id), taskLine(row)] },
      { label: "Dead", phone: "side", kind: "right", cell: (row) => el("b", { class: "bad" }, compact(row.kept)) },
      { label: "of", kind: "right", phone: "off", cell: (row) => compact(row.total) },
      { label: "State", phone: "bare", kind: "tight", cell: (row) => stateBadge(row) },
      { label: "Submitted", phone: "off", kind: "right", cell: (row) => when(row.submitted_ms), sign: (row) => when(row.submitted_ms).textContent },
      {
        label: "", name: "Actions", phone: "bare", kind: "tight right",
        cell: (row) => can && el("span", { class: "row" }, button("Requeue", () => requeue(row.id, choice(), row.kept, () => refresh()), { kind: "small" }),
          button("Drop", () => drop(row.id, choice(), row.kept, () => refresh()), { kind: "small danger" })),
      },
    ],
  });
  root.append(el("div", { class: "stack tight" }, field.node, chips), problem, panel("Failures of the queue", groups), el("section", { class: "panel" }, el("header", {}, el("h2", {}, "Requests with dead sub-requests")), list.node), rest);

  function choice() {
    return Object.keys(chosen).length ? choiceOf(chosen) : { everything: true };
  }
  function change(value) {
    text = value;
    try {
      chosen = parse(text);
      field.error("");
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      field.error(error.message);
      return;
    }
    drawChips();
    context.setQuery({ q: text.trim() });
    before = "";
    refresh();
  }
  function drawChips() {
    show(chips, [...CHIPS, ...(release ? [RELEASE_CHIP] : [])].map(([name, words]) => button(name, () => field.set(words), { kind: "plain small chip", "aria-pressed": String(text.trim() === words) })));
  }
  function draw(found) {
    const now = JSON.stringify(found);
    if (now === before) return;
    before = now;
    show(groups,
      found.groups.length === 0 && (Object.keys(chosen).length ? nothing("check", "No dead letter fits", "Change the filter.") : nothing("check", "Nothing has failed for good")),
      el("ul", { class: "failures" }, found.groups.map((group) => failure(group, {
        more: [" · in ", group.requests === 1 ? el("a", { href: deadHref(group.examples[0].id) }, group.examples[0].id) : counted(group.requests, "request")],
        tools: can ? [button("Requeue", () => changeGroup(GROUP.requeue_dead, group, chosen, () => refresh()), { kind: "small", icon: "again" }),
          button("Drop", () => changeGroup(GROUP.drop_dead, group, chosen, () => refresh()), { kind: "small danger", icon: "trash" })] : [],
      }))),
      found.retries.map((one) => el("p", { class: "muted small" }, `${counted(one.count, "sub-request")} of `, one.requests === 1
        ? el("a", { href: requestHref(one.examples[0]) }, one.examples[0]) : counted(one.requests, "request"), " to be tried again: ", one.headline, one.where && ` (${one.where})`)),
      (found.more > 0 || found.unread > 0) && el("p", { class: "muted small" }, `${number(found.more)} more, and those of ${counted(found.unread, "request")}, were not read.`));
  }
  async function read(stop) {
    const asked = chosen;
    const found = await get("v1/errors", { query: asked, signal: stop });
    if (asked !== chosen) return;
    show(problem);
    if (found.release?.name !== release?.name) {
      ({ release } = found);
      drawChips();
    }
    tasks = [...new Set(found.groups.flatMap((group) => Object.keys(group.tasks)))].slice(0, MOST_TASKS);
    draw(found);
    list.set(found.requests);
    show(rest, found.more_requests > 0 && `${counted(found.more_requests, "request")} with fewer dead sub-requests are left out.`);
  }
  change(text);
  refresh = every(READ_MS, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
  return null;
}

const deadHref = (id) => `#/dead?request=${encodeURIComponent(id)}`;

const GROUP = {
  requeue_dead: { action: "requeue_dead", title: "Let them run again?", word: "Requeue", verb: "will run again, with all attempts", done: "will run again" },
  drop_dead: { action: "drop_dead", title: "Drop them?", word: "Drop", verb: "will be deleted with their bodies. Counts stay. This cannot be undone", done: "dropped", danger: true },
};

/** Counts the requests that have dead sub-requests, asks, and changes those of a group of failures in all of them. */
async function changeGroup({ action, title, word, verb, done, danger = false }, group, chosen, after) {
  const choice = { action, everything: true, ...choiceOf(chosen), fingerprints: [group.fingerprint] };
  let expected = 0;
  const effect = post("v1/bulk", { ...choice, dry_run: true }).then((report) => {
    expected = report.matched;
    return report.matched
      ? { node: [el("b", {}, counted(report.matched, "request")), ` with ${counted(report.dead, "dead sub-request")}: those that failed like this (about ${number(group.count)}) ${verb}.`] }
      : { node: "No dead sub-request of it is left.", empty: true };
  });
  const report = await ask({ title, action: word, danger, effect, act: () => post("v1/bulk", { ...choice, expected }) });
  if (!report) return;
  toast(`${counted(report.dead, "sub-request")} ${done}${report.failed ? `; ${counted(report.failed, "request")} had none: ${Object.values(report.errors)[0]}` : ""}.`);
  after();
}
