// The dead sub-requests of one request, each with its error and its body.
import { get, part } from "../../parts/api.js";
import { notice, nothing } from "../../parts/bits.js";
import { button, el, icon, show } from "../../parts/dom.js";
import { counted, when } from "../../parts/format.js";
import { requestHref } from "../../shell/router.js";
import { drop, requeue } from "./errors.js";
import { bodyText } from "./results.js";

export function deadOfRequest(root, context, id) {
  const { signal } = context;
  const can = context.can("operate");
  const list = el("div", { class: "stack" });
  const more = el("div", { class: "pages" });
  const problem = el("div");
  let count = 0;
  const back = el("a", { class: "back", href: "#/dead", "aria-label": "All dead letters", title: "All dead letters" }, icon("back"));
  root.append(problem, list, more);
  context.head([back, "Dead letters"], el("a", { class: "mono", href: requestHref(id) }, id));

  async function read(after) {
    try {
      const found = await get(`v1/requests/${part(id)}/dead`, { query: { after }, signal });
      if (!after) {
        show(list);
        const kept = await get(`v1/requests/${part(id)}/errors`, { signal }); // without those that were requeued or dropped
        count = kept.groups.reduce((sum, group) => sum + group.count, 0) + kept.more;
        head();
      }
      list.append(...found.dead.map(card));
      if (!after && !found.dead.length) show(list, nothing("check", "It has no dead sub-requests"));
      show(more, found.after && button("Read on", () => read(found.after), { kind: "small" }));
    } catch (error) {
      if (error.name !== "AbortError") show(problem, notice(error.message));
    }
  }
  function head() {
    const all = { everything: true };
    context.head([back, "Dead letters"], [el("a", { class: "mono", href: requestHref(id) }, id), ` · ${counted(count, "dead sub-request")}`],
      ...(can && count ? [button("Requeue all", () => requeue(id, all, count, () => read("")), { icon: "again" }), button("Drop all", () => drop(id, all, count, () => read("")), { icon: "trash", kind: "danger" })] : []));
  }
  function card(one) {
    const choice = { indexes: [one.index] };
    return el("article", { class: "panel" },
      el("header", {}, el("h2", {}, one.call ? [`#${one.index} `, el("span", { class: "mono" }, one.call)] : `#${one.index}`), el("span", { class: "muted small" }, `${one.reason}, after ${counted(one.attempt, "attempt")} · ${one.worker || "no worker"} · `, when(one.died_ms)),
        can && el("div", { class: "tools" }, button("Requeue", () => requeue(id, choice, 1, () => read("")), { kind: "small" }), button("Drop", () => drop(id, choice, 1, () => read("")), { kind: "small danger" }))),
      el("div", { class: "body grid" },
        el("div", {}, el("h3", {}, "Error"), el("pre", { class: "content", tabindex: "0" }, one.error || "(none)")),
        el("div", {}, el("h3", {}, "Body"), el("pre", { class: "content", tabindex: "0" }, bodyText(one.body) || "(empty)"))));
  }
  read("");
  return null;
}
