// The first results of a request, read when they are wanted.
import { lines, part } from "../../parts/api.js";
import { notice, nothing, panel } from "../../parts/bits.js";
import { button, el, show } from "../../parts/dom.js";
import { number, span } from "../../parts/format.js";

const MOST = 20;
const MOST_TEXT = 600; // characters of one body

/** Returns a body as text, cut; one that is not UTF-8 is shown as Base64. */
export function bodyText(body) {
  if (body === null || body === undefined) return "";
  const text = typeof body === "string" ? body : `Base64 ${body.base64}`;
  return text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)} … (${number(text.length)} characters)` : text;
}

export function resultPanel({ id, context }) {
  const list = el("ul", { class: "results" });
  const text = el("p", { class: "muted small" });
  const open = button(`Show the first ${MOST}`, read, { kind: "small" });
  const tools = el("div", { class: "tools" }, open);
  const node = panel("Results", text, list);
  node.querySelector("header").append(tools);

  async function read() {
    open.disabled = true;
    try {
      const found = await lines(`v1/requests/${part(id)}/results`, MOST, { query: { order: "done" }, signal: context.signal });
      show(list, found.length ? found.map(row) : nothing("requests", "No result yet"));
    } catch (error) {
      if (error.name !== "AbortError") show(list, notice(error.message));
    }
    open.disabled = false;
  }
  return {
    node,
    update(one) {
      const count = one.done + one.dead;
      tools.hidden = count === 0;
      show(text, count ? `${number(count)} so far. All of them: ` : "No result yet.", count > 0 && el("code", {}, `fairlane results ${id}`));
    },
  };
}

function row(one) {
  return el("li", {}, el("div", { class: "row spread small" },
    el("span", {}, el("b", { class: "number" }, `#${one.index}`), " ", el("span", { class: one.status === "dead" ? "bad" : "good" }, one.status)),
    el("span", { class: "muted" }, `${span(one.ran_ms)} · ${one.worker}`)),
  el("pre", { class: "content", tabindex: "0" }, one.status === "dead" ? one.error : bodyText(one.body) || "(no body)"));
}
