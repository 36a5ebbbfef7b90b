// The audit trail: who changed what, and what became of it.
import { get } from "../parts/api.js";
import { notice, nothing } from "../parts/bits.js";
import { button, el, icon, show } from "../parts/dom.js";
import { clock, number, when } from "../parts/format.js";
import { every } from "../parts/live.js";
import { table } from "../parts/table.js";
import { requestHref } from "../shell/router.js";
import { actionText } from "./request/trail.js";

const PAGE = 100;

export function mount(root, context) {
  const { signal } = context;
  if (!context.can("operate")) {
    root.append(notice("The audit trail needs a token with the scope operate.", false));
    return;
  }
  const problem = el("div");
  const pages = el("nav", { class: "pages", "aria-label": "Pages of the trail" });
  let starts = [""];
  let refresh = () => {};
  const list = table({
    caption: "Changes, newest first", key: (row) => row.id, signal,
    empty: nothing("audit", "Nothing was changed yet", "Changes in the dashboard and over HTTP are listed here."),
    columns: [
      { label: "When", kind: "tight", phone: "side", cell: (row) => el("span", { title: clock(row.at_ms) }, when(row.at_ms)), sign: (row) => when(row.at_ms).textContent },
      { label: "Who", kind: "tight", phone: "line", cell: (row) => el("span", { title: [row.token && `token ${row.token}`, row.address && `from ${row.address}`].filter(Boolean).join(", ") }, row.who || row.address) },
      { label: "What", kind: "tight", phone: "title", cell: (row) => el("b", { title: row.action }, actionText(row.action)) },
      { label: "Object", kind: "names", phone: "bare", cell: (row) => objectOf(row) },
      { label: "Given", kind: "words", phone: "bare", cell: (row) => givenOf(row) },
      { label: "Outcome", kind: "words", phone: "bare", cell: outcome },
    ],
  });
  root.append(problem, el("section", { class: "panel" }, list.node), pages);

  async function read(stop) {
    const found = await get("v1/audit", { query: { limit: PAGE, after: starts.at(-1) }, signal: stop });
    show(problem);
    list.set(found.entries);
    const turn = (where) => {
      starts = where;
      refresh();
    };
    show(pages, starts.length > 1 && button("Newer", () => turn(starts.slice(0, -1)), { kind: "small" }), found.after && button("Older", () => turn([...starts, found.after]), { kind: "small" }));
  }
  refresh = every(5000, read, { signal, onProblem: (error) => show(problem, notice(error.message)) });
}

function objectOf(row) {
  if (!row.object) return null;
  return row.action.includes("/requests/") ? el("a", { class: "mono", href: requestHref(row.object) }, row.object) : el("span", { class: "mono" }, row.object);
}

function givenOf(row) {
  const text = [row.count > 1 && `${number(row.count)} times`, row.given, row.ids.length > 0 && `ids=${row.ids.join(" ")}`].filter(Boolean).join(" ");
  return text && el("span", { class: "small mono given", title: text }, text.length > 200 ? `${text.slice(0, 200)} …` : text);
}

function outcome(row) {
  if (row.action.startsWith("token ")) return null; // the server has only seen it
  if (row.status === null) return el("span", { class: "muted" }, "no end is recorded");
  if (row.status < 300) return el("span", { class: "outcome good" }, icon("check"), "done");
  return el("span", { class: "outcome bad" }, icon("cross"), `refused: ${row.detail || row.status}`);
}
