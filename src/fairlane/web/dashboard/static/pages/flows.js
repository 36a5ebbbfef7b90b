// Flows: each run as a drawing of its steps.
import { get, part, post } from "../parts/api.js";
import { meter, notice, nothing, stateBadge } from "../parts/bits.js";
import { button, el, icon, show } from "../parts/dom.js";
import { compact, counted, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { ask, toast } from "../parts/messages.js";
import { requestHref } from "../shell/router.js";

const PAGE = 50;
const MOST_PAGES = 5; // of the server that one page of the list reads

export function mount(root, context) {
  const { signal } = context;
  const problem = el("div");
  const list = el("div", { class: "stack" });
  let before = "";
  let refresh = () => {};
  const pages = el("nav", { class: "pages", "aria-label": "Pages of the list" });
  let starts = [""]; // cursors of the pages up to this one
  let next = "";
  root.append(problem, list, pages);

  function drawPages(count) {
    const turn = (where) => () => {
      starts = where();
      refresh();
    };
    show(pages, count > 0 && el("span", { class: "muted small" }, counted(count, "run")),
      starts.length > 1 && button("Before", turn(() => starts.slice(0, -1)), { kind: "small" }),
      next && button("Next", turn(() => [...starts, next]), { kind: "small" }));
  }

  async function read(stop) {
    const flows = [];
    let after = starts.at(-1);
    for (let page = 0; page < MOST_PAGES && flows.length < PAGE; page += 1) {
      const found = await get("v1/flows", { query: { limit: PAGE - flows.length, after }, signal: stop });
      flows.push(...found.flows);
      after = found.after;
      if (!after) break;
    }
    show(problem);
    const now = JSON.stringify([flows, Boolean(after), starts.length]);
    next = after;
    if (now === before) return;
    before = now;
    drawPages(flows.length);
    show(list, flows.length ? flows.map((flow) => run(flow, context, () => refresh()))
      : after ? el("section", { class: "panel" }, nothing("flows", "No flow among these requests", "Next looks further."))
      : el("section", { class: "panel" }, nothing("flows", "No flow runs here", "A flow is a line of requests: each result of a step goes on to the next.")));
  }
  refresh = every(2000, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
}

function run(flow, context, after) {
  const begun = Math.min(...flow.steps.map((one) => one.request.submitted_ms));
  return el("section", { class: "panel", "aria-label": `Run ${flow.id}` },
    el("header", {}, el("h2", {}, el("span", { class: "mono" }, flow.id)), el("span", { class: "muted small" }, `flow ${flow.flow} · `, when(begun)), stateBadge(flow, flow.outcome ?? flow.state, flow.steps.reduce((sum, one) => sum + one.request.dead, 0)),
      context.can("operate") && flow.state === "active" && el("div", { class: "tools" }, button("Cancel", () => cancel(flow, after), { kind: "small danger" }))),
    el("div", { class: "body" }, columns(flow.steps)));
}

/** Returns the steps in columns, from left to right: each is behind all the steps that feed it. */
function columns(steps) {
  const byName = new Map(steps.map((one) => [one.step, one]));
  const place = (one) => (one.sources.length ? 1 + Math.max(...one.sources.map((name) => place(byName.get(name)))) : 0);
  const found = [];
  for (const one of steps) (found[place(one)] ??= []).push(one);
  return el("ol", { class: "flow" }, found.map((column) => el("li", { class: "stack" }, column.map(step))));
}

function step(one) {
  const { request, sources } = one;
  const names = sources.join(", ");
  const role = {
    dead: `undoes what failed in ${names}`,
    branch: `gets the results of ${names} that name it`,
    chosen: `runs children that results of ${names} chose`,
    join: `joins ${names}`,
    merge: `gets the results of ${names}`,
    results: `gets the results of ${names}`,
  }[one.gets];
  return el("a", { class: one.is_compensating ? "step undo" : "step", href: requestHref(request.id) },
    el("span", { class: "row spread" }, el("b", {}, one.is_compensating && [icon("again"), " "], one.step), stateBadge(request)),
    meter(request),
    el("span", { class: "small muted" }, `${compact(request.done)} of ${compact(request.total)}${request.is_open ? " so far" : ""}`, request.dead > 0 && [" · ", el("span", { class: "bad" }, `${compact(request.dead)} dead`)]),
    role && el("span", { class: "small muted" }, role));
}

async function cancel(flow, after) {
  const left = flow.steps.reduce((sum, one) => sum + one.request.left, 0);
  const done = await ask({
    title: `Cancel ${flow.id}?`, action: "Cancel the run", danger: true,
    effect: `All ${counted(flow.steps.length, "step")} are cancelled: ${counted(left, "sub-request")} will not run, and no result goes on. This cannot be undone.`,
    act: () => post(`v1/flows/${part(flow.id)}/cancel`, { reason: "cancelled in the dashboard" }),
  });
  if (!done) return;
  toast("The run is cancelled.");
  after();
}
