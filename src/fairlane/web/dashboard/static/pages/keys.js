// The limits by key: what holds each key, what waits for it, and its limit.
import { get, part, post, put } from "../parts/api.js";
import { badge, meter, notice, nothing, panel } from "../parts/bits.js";
import { button, el, show } from "../parts/dom.js";
import { number, span } from "../parts/format.js";
import { every } from "../parts/live.js";
import { ask, toast } from "../parts/messages.js";
import { table } from "../parts/table.js";
import { requestHref } from "../shell/router.js";

const READ_MS = 5000;
const SHOWN = 3; // requests of a cell

/** Returns the address of the page with one key; the key of a task is task/NAME. */
export const keyHref = (name) => `#/keys?q=${encodeURIComponent(name)}`;

export function mount(root, context) {
  const { signal } = context;
  let found = [];
  let text = context.query.get("q") ?? "";
  let refresh = () => {};
  const problem = el("div");
  const rest = el("p", { class: "muted small" });
  const filter = el("input", { type: "search", "data-filter": true, value: text, placeholder: "key or request", "aria-label": "Filter", oninput: () => {
    text = filter.value;
    context.setQuery({ q: text });
    draw();
  } });
  const rows = table({
    caption: "Keys of limits", key: (one) => `${one.is_order ? "!" : ""}${one.name}`, signal,
    columns: [
      { label: "Key", phone: "title", kind: "wide names", cell: (one) => [el("span", { class: "id" }, one.name), el("div", { class: "small muted" }, origin(one))] },
      { label: "State", phone: "side", cell: (one) => one.stopped_by ? badge("failed", "stopped") : (one.waiting ? badge("expiring", "full") : badge(one.held ? "working" : "waiting", one.held ? "has room" : "not held")) },
      { label: "Held", phone: "", kind: "tight", cell: (one) => el("div", { class: "row" }, meter({ total: one.limit, held: Math.min(one.held, one.limit) }), `${number(one.held)} of ${number(one.limit)}`) },
      { label: "Called", kind: "right", cell: (one) => number(one.called) },
      { label: "Waiting", kind: "right", cell: (one) => [number(one.waiting), one.waits_ms !== null && el("div", { class: "small muted" }, `the oldest ${span(one.waits_ms)}`)] },
      { label: "Held by, and next", kind: "names", cell: (one) => [requests("held by", one.holders), requests("next", one.next_requests), !one.holders.length && !one.next_requests.length && "–"] },
      context.can("operate") && { label: "", name: "Actions", phone: "bare", kind: "right", cell: (one) => action(one, () => refresh()) },
    ].filter(Boolean),
    empty: nothing("limit", "No key is used or set", "A request names one in ", el("code", {}, "limits"), ", and a task by its ", el("code", {}, "limit"), "."),
  });
  context.head("Limits by key", "over all requests that name the key", filter);
  root.append(problem, panel("", rows.node, rest));

  function draw() {
    const wanted = text.toLowerCase();
    rows.set(found.filter((one) => [one.name, ...one.holders, ...one.next_requests].some((name) => name.toLowerCase().includes(wanted))));
  }
  async function read(stop) {
    const page = await get("v1/keys", { signal: stop });
    const named = text && page.more && !page.keys.some((one) => one.name === text) ? await one(text, stop) : null;
    found = named ? [named, ...page.keys] : page.keys;
    show(problem);
    show(rest, page.more ? "There are more keys: write the whole name of one, or run fairlane key list." : "");
    draw();
  }
  refresh = every(READ_MS, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
}

const path = (name) => `v1/keys/${name.split("/").map(part).join("/")}`;

/** Returns a key that the page of the first ones has not; null if it is not used. */
async function one(name, stop) {
  try {
    return await get(path(name), { signal: stop });
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

function origin(one) {
  if (one.stopped_by) return `stopped by the dead of ${one.stopped_by}`;
  if (one.is_order) return "an order: one request at a time";
  if (one.is_set) return one.of_task ? `set by hand; its task has ${number(one.of_task)}` : "set by hand";
  return one.of_task ? "set by the workers of its task" : "of its first request";
}

function requests(what, ids) {
  if (!ids.length) return null;
  const more = ids.slice(SHOWN);
  return el("div", { class: "small" }, el("span", { class: "muted" }, what), ids.slice(0, SHOWN).map((id) => el("div", {}, el("a", { class: "id", href: requestHref(id) }, id))),
    more.length ? el("span", { class: "muted", title: more.join(", ") }, "and others") : null);
}

function action(one, after) {
  if (one.stopped_by) return button("Resume", () => resume(one, after), { kind: "small", icon: "play", label: `Let the order of ${one.name} go on` });
  if (one.is_order) return null;
  return button("Set", () => set(one, after), { kind: "small", icon: "limit", label: `Set the limit of ${one.name}` });
}

async function resume(one, after) {
  const done = await ask({
    title: `Let the order of ${one.name} go on`, action: "Let it go on",
    effect: `Request ${one.stopped_by} ended with dead sub-requests, and ${number(one.waiting)} behind it wait for you. The next one starts, without them. To run them first, requeue them instead.`,
    act: () => post(`${path(one.name)}/resume`),
  });
  if (!done) return;
  toast(done.resumed ? "The next request of the key starts." : "Nothing stops this key any more.");
  after();
}

async function set(one, after) {
  const done = await ask({
    title: `Set the limit of ${one.name}`, action: "Set the limit",
    effect: "A higher limit starts work that waits. Leases above a lower limit end as ever. Empty: the limit is that of its task, or of its first request again.",
    fields: [{ name: "limit", label: "The most leases at a time", type: "number", min: 1, max: 10_000, value: one.limit }],
    act: ({ limit }) => put(path(one.name), { limit: Number.isNaN(limit) ? null : limit }),
  });
  if (!done) return;
  toast(done.limit === null ? "The key has no limit by hand." : `The limit is ${number(done.limit)}.`);
  after();
}
