// The list of requests: a filter, pages, and changes of many.
import { get } from "../parts/api.js";
import { endedShare, meter, notice, nothing, stateBadge, taskLine } from "../parts/bits.js";
import { combo } from "./requests/combo.js";
import { button, el, show } from "../parts/dom.js";
import { compact, number, setNow, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { table } from "../parts/table.js";
import { requestHref } from "../shell/router.js";
import { longMark } from "./queue/longcalls.js";
import { bulkBar } from "./requests/bulk.js";
import { FilterError, hints, parse } from "./requests/filter.js";

const PAGE = 50;
const MOST_TASKS = 200; // that the filter offers
const MOST_PAGES = 5; // of the server that one page of a narrower filter reads
const SORTS = [
  ["", "Usual order"], ["priority", "Most urgent first"], ["-priority", "Least urgent first"], ["submitted", "Oldest first"], ["-submitted", "Newest first"],
  ["-waiting", "Most waiting first"], ["waiting", "Fewest waiting first"], ["state", "By state"], ["-state", "By state, reversed"],
];
const CHIPS = [["All", ""], ["Running", "state:running"], ["Waiting", "state:waiting"], ["Paused", "state:paused"], ["Failed", "state:failed state:partly_failed"], ["Ended", "state:ended"]];

export function mount(root, context) {
  const { query, signal } = context;
  let text = query.get("q") ?? "";
  let starts = query.get("after") ? ["", query.get("after")] : [""]; // cursors of the pages up to this one
  let sort = SORTS.some(([name]) => name === query.get("sort")) ? query.get("sort") : "";
  let next = "";
  let filter = { query: {}, only: null };
  const seen = { tags: [], tenants: [], tasks: [] };
  let refresh = () => {};
  let drawn = []; // rows
  let hanging = new Set(); // ids of requests with calls that run unusually long

  const field = combo({ label: "Filter requests", value: text, placeholder: "state:running task:send_mail priority:0..9 age:>10m", hints: (value) => hints(value, seen), onChange: change });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Common filters" });
  const problem = el("div");
  const unfit = nothing("requests", "No request fits", "Change the filter.");
  const none = nothing("requests", "There is no request", "Submit one with ", el("code", {}, "rq-submit"), ".");
  const list = table({
    caption: "Requests", key: (row) => row.id, href: (row) => requestHref(row.id), signal, columns: COLUMNS, sorted: sort, onSort,
    pick: context.can("operate") ? (ids) => bulk.show(ids) : null,
    empty: [unfit, none],
  });
  const pages = el("nav", { class: "pages", "aria-label": "Pages of the list" });
  const bulk = bulkBar({ context, chosen: list, filter: () => ({ text, ...filter }), after: () => refresh() });
  const orders = el("select", { "aria-label": "Order", onchange: () => onSort(orders.value) }, SORTS.map(([name, words]) => el("option", { value: name }, words)));
  orders.value = sort;
  root.append(el("div", { class: "stack tight" }, field.node, el("div", { class: "row spread" }, chips, el("label", { class: "order" }, orders))), problem, bulk.node, el("section", { class: "panel" }, list.node), pages);

  function change(value) {
    if (value.trim() === text.trim() && filter.done) return;
    text = value;
    starts = [""];
    apply();
  }
  function onSort(wanted) {
    sort = orders.value = wanted;
    list.sortBy(sort);
    starts = [""];
    list.unpick();
    context.setQuery({ q: text.trim(), after: "", sort });
    refresh();
  }
  function apply() {
    try {
      filter = { ...parse(text), done: true };
      field.error("");
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      field.error(error.message);
      return;
    }
    drawChips();
    context.setQuery({ q: text.trim(), after: starts.at(-1), sort });
    refresh();
  }
  function drawChips() {
    show(chips, CHIPS.map(([name, words]) => button(name, () => field.set(words), { kind: "plain small chip", "aria-pressed": String(text.trim() === words) })));
  }
  async function read(stop) {
    const asked = filter;
    const order = sort;
    const rows = [];
    let isSorted = true;
    let after = starts.at(-1);
    for (let page = 0; page < (asked.only ? MOST_PAGES : 1); page += 1) {
      const found = await get("v1/requests", { query: { ...asked.query, limit: PAGE, after, sort }, signal: stop });
      setNow(found.now_ms);
      rows.push(...(asked.only ? found.requests.filter(asked.only) : found.requests));
      after = found.after;
      isSorted = found.is_sorted;
      if (!after || rows.length >= PAGE) break;
    }
    if (asked !== filter || order !== sort) return;
    next = after;
    for (const row of rows) {
      for (const tag of row.tags) if (!seen.tags.includes(tag)) seen.tags.push(tag);
      for (const task of Object.keys(row.tasks)) if (!seen.tasks.includes(task) && seen.tasks.length < MOST_TASKS) seen.tasks.push(task);
      if (row.tenant && !seen.tenants.includes(row.tenant)) seen.tenants.push(row.tenant);
    }
    drawn = rows;
    show(problem);
    none.hidden = Boolean(text.trim()) || starts.length > 1;
    unfit.hidden = !none.hidden;
    draw();
    drawPages(rows.length, isSorted);
  }
  function draw() {
    list.set(drawn.map((row) => ({ ...row, hangs: hanging.has(row.id) })));
  }
  /** Reads which requests have calls that run unusually long. */
  async function readCalls(stop) {
    const { long_calls: calls } = await get("v1/tasks", { query: { limit: 1 }, signal: stop });
    hanging = new Set(calls.map((call) => call.id));
    draw();
  }
  function drawPages(count, isSorted) {
    const turn = (where) => {
      starts = where;
      list.unpick();
      context.setQuery({ q: text.trim(), after: starts.at(-1), sort });
      refresh();
    };
    show(pages, el("span", { class: "muted small" }, `${number(count)} shown${next ? ", more follow" : ""}${isSorted || !next ? "" : sort ? "; each part of 1,000 is sorted" : "; the most urgent of them first"}`),
      starts.length > 1 && button("Before", () => turn(starts.slice(0, -1)), { kind: "small" }),
      next && button("Next", () => turn([...starts, next]), { kind: "small" }));
  }
  apply();
  refresh = every(2000, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
  every(5000, readCalls, { signal });
}

const COLUMNS = [
  {
    label: "Request", phone: "title", kind: "wide",
    cell: (row) => [el("a", { class: "mono", href: requestHref(row.id) }, row.id), taskLine(row), labels(row)],
  },
  { label: "State", phone: "side", kind: "tight", sort: "state", cell: (row) => [stateBadge(row), row.hangs && el("div", {}, longMark())] },
  { label: "Priority", kind: "right", phone: "off", sort: "priority", cell: (row) => String(row.priority) },
  {
    label: "Progress", phone: "bare", kind: "progress",
    cell: (row) => el("div", { class: "progress-cell" }, meter(row), el("span", { class: "number" }, endedShare(row)), el("span", { class: "muted small number" }, `of ${compact(row.total)}${row.is_open ? " so far" : ""}`)),
  },
  { label: "Waiting", kind: "right", phone: "off", sort: "waiting", falls: true, cell: (row) => (row.waiting ? compact(row.waiting) : el("span", { class: "muted" }, "0")) },
  { label: "Workers", kind: "right", phone: "off", cell: (row) => (row.ended_ms ? el("span", { class: "muted" }, "–") : [String(row.held), el("span", { class: "muted" }, ` / ${row.limit}`)]) },
  { label: "Dead", kind: "right", phone: "off", cell: (row) => (row.dead ? el("a", { class: "bad", href: `#/dead?request=${encodeURIComponent(row.id)}` }, compact(row.dead)) : el("span", { class: "muted" }, "0")) },
  { label: "Submitted", kind: "right", phone: "off", sort: "submitted", cell: (row) => when(row.submitted_ms), sign: (row) => when(row.submitted_ms).textContent },
];

function labels(row) {
  if (!row.tags.length && !row.tenant) return null;
  return el("div", { class: "labels" },
    row.tenant && el("a", { class: "tag", href: `#/requests?q=tenant:${encodeURIComponent(row.tenant)}` }, row.tenant),
    row.tags.map((tag) => el("a", { class: "tag", href: `#/requests?q=tag:${encodeURIComponent(tag)}` }, `#${tag}`)));
}
