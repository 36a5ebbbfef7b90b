// The failures of a request in groups, and what to do with them.
import { get, part, post } from "../../parts/api.js";
import { badge, nothing } from "../../parts/bits.js";
import { button, el, show } from "../../parts/dom.js";
import { counted, number, setNow, when } from "../../parts/format.js";
import { ask, toast } from "../../parts/messages.js";
import { requestHref } from "../../shell/router.js";

/** Asks, and lets dead sub-requests of a request run again. `choice` is {fingerprints} or {everything}. */
export async function requeue(id, choice, count, after) {
  const done = await ask({
    title: "Let them run again?", action: "Requeue",
    effect: [el("b", {}, counted(count, "dead sub-request")), ` of ${id} will run again, with all attempts. If the request has ended, it is opened again, and ends once more.`],
    act: () => post(`v1/requests/${part(id)}/dead/requeue`, choice),
  });
  if (!done) return;
  toast(`${counted(done.requeued, "sub-request")} will run again.`);
  if (done.id !== id && location.hash.startsWith(requestHref(id))) location.hash = requestHref(done.id);
  else after();
}

/** Asks, and deletes dead sub-requests of a request. */
export async function drop(id, choice, count, after) {
  const done = await ask({
    title: "Drop them?", action: "Drop", danger: true,
    effect: [el("b", {}, counted(count, "dead sub-request")), ` of ${id} will be deleted with their bodies. The counts stay. This cannot be undone.`],
    act: () => post(`v1/requests/${part(id)}/dead/drop`, choice),
  });
  if (!done) return;
  toast(`${counted(done.dropped, "dead sub-request")} dropped.`);
  after();
}

/** Returns a group of equal failures. */
export function failure(group, { more = null, tools = [] } = {}) {
  return el("li", { class: "failure" },
    el("div", { class: "failure-count number" }, number(group.count)),
    el("div", { class: "failure-text" },
      el("div", { class: "mono failure-line" }, group.headline || group.reason),
      group.is_new && badge("expiring", "new since the last release"),
      Object.keys(group.tasks).length > 0 && el("div", { class: "small" }, tasksOf(group)),
      el("div", { class: "small muted" }, [group.where, reason(group.reason)].filter(Boolean).join(" · "), " · last ", when(group.last_ms), more)),
    tools.length > 0 && el("div", { class: "row failure-tools" }, tools));
}

const MOST_TASKS = 3;

/** Returns the tasks of a group; the call itself if it is the only one. */
function tasksOf({ tasks, call, count }) {
  const names = Object.keys(tasks);
  if (count === 1 && call) return el("span", { class: "mono" }, call);
  const shown = names.slice(0, MOST_TASKS).map((name) => (names.length > 1 ? `${name} (${number(tasks[name])})` : name));
  return shown.join(", ") + (names.length > MOST_TASKS ? ` and ${number(names.length - MOST_TASKS)} more` : "");
}

const REASONS = { attempts: "all attempts failed", timeout: "took too long", rejected: "rejected by the handler", killed: "killed by a person", died: "its worker died", deadline: "the deadline passed" };
const reason = (word) => REASONS[word] ?? word;

export function errorPanel({ id, context, after }) {
  const tools = el("div", { class: "tools" });
  const body = el("div", { class: "body" });
  const node = el("section", { class: "panel" }, el("header", {}, el("h2", {}, "Failures"), tools), body);
  let before = "";

  function draw(found) {
    const count = found.groups.reduce((sum, group) => sum + group.count, 0) + found.more;
    const can = context.can("operate");
    show(tools, count > 0 && el("a", { class: "button small plain", href: `#/dead?request=${encodeURIComponent(id)}` }, "See each"),
      can && count > 0 && button("Requeue all", () => requeue(id, { everything: true }, count, after), { kind: "small", icon: "again" }));
    const last = found.request.last_failure ?? found.request.given_back;
    const choice = (group) => ({ fingerprints: [group.fingerprint] });
    show(body,
      !count && !last && nothing("check", "No sub-request has failed"),
      el("ul", { class: "failures" }, found.groups.map((group) => failure(group, {
        tools: can ? [button("Requeue", () => requeue(id, choice(group), group.count, after), { kind: "small plain" }), button("Drop", () => drop(id, choice(group), group.count, after), { kind: "small plain danger" })] : [],
      }))),
      found.more > 0 && el("p", { class: "muted small" }, `${number(found.more)} more were not read.`),
      found.retries > 0 && el("p", { class: "small" }, el("b", {}, counted(found.retries, "sub-request")), " wait for another attempt, the first ", when(found.due_ms), "."),
      last && el("details", { class: "small" }, el("summary", {}, `Last failed attempt: #${last.index}, attempt ${last.attempt}, `, when(last.at_ms)),
        el("pre", { class: "content", tabindex: "0" }, last.error)));
  }
  return {
    node,
    async read(signal) {
      const found = await get(`v1/requests/${part(id)}/errors`, { signal });
      setNow(found.now_ms);
      const now = JSON.stringify({ ...found, now_ms: 0 });
      if (now !== before) draw(found);
      before = now;
    },
  };
}
