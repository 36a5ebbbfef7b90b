// Shows the page that the address names: #/requests, #/requests/ID, with a query behind `?`.
import { el, show, visible } from "../parts/dom.js";
import { notice } from "../parts/bits.js";

/** The pages of the navigation, in order. `keys` open one. `module` is its file; `one` that of `#/name/ID`. `scope` is who may see it. */
export const PAGES = [
  { name: "overview", title: "Overview", icon: "overview", keys: "g o", module: "queue/overview" },
  { name: "requests", title: "Requests", icon: "requests", keys: "g r", module: "requests", one: "request" },
  { name: "tasks", title: "Tasks", icon: "tasks", keys: "g t", module: "tasks" },
  { name: "workers", title: "Workers", icon: "workers", keys: "g w", module: "queue/workers" },
  { name: "priorities", title: "Priorities", icon: "ladder", keys: "g p", module: "queue/ladder" },
  { name: "fairness", title: "Fairness", icon: "shares", keys: "g e", module: "queue/fairness" },
  { name: "keys", title: "Limits by key", icon: "limit", keys: "g k", module: "keys" },
  { name: "dead", title: "Dead letters", icon: "dead", keys: "g d", module: "dead" },
  { name: "flows", title: "Flows", icon: "flows", keys: "g f", module: "flows" },
  { name: "schedules", title: "Schedules", icon: "schedules", keys: "g s", module: "schedules" },
  { name: "redis", title: "Redis", icon: "redis", keys: "g i", module: "queue/redis" },
  { name: "audit", title: "Audit trail", icon: "audit", keys: "g a", module: "audit", scope: "operate" },
];

/** Returns what the address names: {page, id, query}. */
export function place(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const page = PAGES.find((one) => one.name === name) ?? PAGES[0];
  const id = page.one && rest.length ? decode(rest.join("/")) : "";
  return { page, id, query: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Returns the address of a request's page. */
export const requestHref = (id) => `#/requests/${encodeURIComponent(id)}`;

/**
 * Shows pages in `root` until `signal` aborts; `onPage(page)` is called at each change.
 *
 * A page's module exports `mount(root, context)`, and may return a function that is called when it is left. The
 * context has {id, query, me, can(scope), signal, head(title, sub, ...tools), setQuery(values), leave(hash)}.
 * `signal` aborts when the page is left: calls, streams, keys and listeners take it, so most pages return nothing.
 */
export function start(root, me, signal, onPage) {
  let shown = null;

  async function turn() {
    const where = place();
    shown?.ended.abort();
    shown?.unmount?.();
    const ended = new AbortController();
    const mine = (shown = { ended, unmount: null });
    onPage(where.page);
    const module = where.id ? where.page.one : where.page.module;
    try {
      const { mount } = await import(`../pages/${module}.js`);
      if (ended.signal.aborted) return;
      const frame = el("div", { class: "stack" });
      const context = contextOf(where, me, ended.signal, frame);
      show(root, frame);
      window.scrollTo(0, 0);
      mine.unmount = await mount(context.body, context);
      if (ended.signal.aborted) mine.unmount?.();
    } catch (error) {
      if (error.name === "AbortError") return;
      show(root, notice(error.status === undefined ? "This page failed: reload it, and report what its console says." : error.message));
      if (error.status === undefined) console.error(error);
    }
  }
  addEventListener("hashchange", turn, { signal });
  signal.addEventListener("abort", () => {
    shown?.ended.abort();
    shown?.unmount?.();
  });
  turn();
}

function contextOf({ page, id, query }, me, signal, frame) {
  const heading = el("h1", {}, page.title);
  const top = el("header", { class: "head" }, heading);
  const body = el("div", { class: "stack" });
  frame.append(top, body);
  document.title = visible(`${page.title} · ${me.queue} · Fairlane`);
  return {
    id, query, me, signal, body,
    can: (scope) => me.scopes.includes(scope),
    head(title, sub, ...tools) {
      document.title = visible(`${id || page.title} · ${me.queue} · Fairlane`);
      show(top, el("h1", {}, title), sub && el("span", { class: "sub" }, sub), tools.length ? el("div", { class: "tools" }, tools) : null);
    },
    setQuery(values) {
      const next = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
      const path = location.hash.split("?")[0];
      history.replaceState(null, "", String(next) ? `${path}?${next}` : path);
    },
  };
}
