// A table that keeps its rows: an update changes only what differs, so focus and choice stay.
import { el, show } from "./dom.js";
import { onKey } from "./keys.js";

/**
 * Returns {node, set(rows), picked(), unpick(), sortBy(sorted)}.
 *
 * `columns` are {label, cell(row) -> text or node, kind, phone}. `kind` are classes of its cells: right, tight,
 * wide, words (a sentence). On a phone each row is a card: a column's `phone` is title (its first line), side (right of it), bare
 * (without its label), off (left out) or none of these (a line with its label).
 * `key(row)` names a row. `href(row)` is where it opens; then j, k and Enter move and open. With `pick`, rows
 * have boxes, and `pick(keys)` is called when the choice changes; `pickLabel(row)` names a box.
 * `caption` describes the table, `empty` is shown instead of no rows. A column with `sort`, a name, has a button
 * that sorts; `falls`: its largest value is first. `onSort(sorted)` is called with the name, with - in front if it
 * falls, or with "", the usual order; `sorted` is the order at first.
 */
export function table({ columns, key, href, pick, pickLabel = key, caption, empty, signal, onSort, sorted = "" }) {
  const rows = new Map(); // key -> {row, text, tr, box}
  const chosen = new Set();
  const headings = []; // of the columns that sort
  let order = sorted;
  let at = null;
  const all = pick && el("input", { type: "checkbox", "aria-label": "Choose all rows of this page", onchange: pickAll });
  const body = el("tbody");
  const blank = el("div", { hidden: true }, empty);
  const frame = el("table", { class: `table cards${href ? " opens" : ""}` },
    el("caption", { class: "visually-hidden" }, caption),
    el("thead", {}, el("tr", {}, all && el("th", { class: "pick" }, all), columns.map(heading))), body);
  const node = el("div", { class: "scroll" }, frame, blank);

  function heading(column) {
    const text = column.label || el("span", { class: "visually-hidden" }, column.name ?? "Actions");
    if (!column.sort || !onSort) return el("th", { scope: "col", class: column.kind }, text);
    const arrow = el("span", { class: "arrow", "aria-hidden": "true" });
    const th = el("th", { scope: "col", class: column.kind },
      el("button", { type: "button", title: `Sort by ${column.label.toLowerCase()}`, onclick: () => turn(column) }, text, arrow));
    headings.push({ column, th, arrow });
    return th;
  }
  function turn({ sort, falls }) {
    const orders = falls ? [`-${sort}`, sort, ""] : [sort, `-${sort}`, ""];
    order = orders[(orders.indexOf(order) + 1) % orders.length];
    markOrder();
    onSort(order);
  }
  function markOrder() {
    for (const { column, th, arrow } of headings) {
      const direction = order === column.sort ? "ascending" : order === `-${column.sort}` ? "descending" : "none";
      th.setAttribute("aria-sort", direction);
      arrow.textContent = { ascending: "↑", descending: "↓", none: "↕" }[direction];
    }
    for (const { tr } of rows.values()) cellsOf(tr).forEach((cell, place) => (cell.className = classOf(columns[place])));
  }
  function classOf(column) {
    const isSorted = column.sort && order.replace("-", "") === column.sort; // then a phone shows it, too
    const phone = { title: "title", side: "side-cell", off: isSorted ? "" : "off-phone", bare: "bare" }[column.phone];
    return [column.kind, phone].filter(Boolean).join(" ");
  }
  const cellsOf = (tr) => [...tr.children].slice(pick ? 1 : 0);
  function make(row) {
    const name = key(row);
    const box = pick && el("input", { type: "checkbox", "aria-label": `Choose ${pickLabel(row)}`, onchange: () => choose(name, box.checked) });
    const tr = el("tr", { class: pick && "pickable", onclick: (event) => open(event, name) }, pick && el("td", { class: "pick" }, box),
      columns.map((column) => el("td", { class: classOf(column), "data-label": column.label })));
    const made = { row, text: "", tr, box };
    update(made, row);
    return made;
  }
  function update(one, row) {
    const text = columns.map((column) => column.sign?.(row)).join("\n") + JSON.stringify(row);
    if (text === one.text) return;
    one.text = text;
    one.row = row;
    const cells = cellsOf(one.tr);
    columns.forEach((column, place) => {
      if (!cells[place].contains(document.activeElement)) show(cells[place], column.cell(row));
    });
  }
  function open(event, name) {
    if (!href || event.target.closest("a, button, input, label") || String(getSelection())) return;
    location.hash = href(rows.get(name).row);
  }
  function choose(name, on) {
    if (on) chosen.add(name);
    else chosen.delete(name);
    mark();
    pick([...chosen]);
  }
  function pickAll() {
    for (const name of rows.keys()) {
      if (all.checked) chosen.add(name);
      else chosen.delete(name);
    }
    mark();
    pick([...chosen]);
  }
  function mark() {
    for (const [name, { tr, box }] of rows) {
      tr.classList.toggle("picked", chosen.has(name));
      tr.classList.toggle("at", name === at);
      if (box) box.checked = chosen.has(name);
    }
    if (all) {
      all.checked = rows.size > 0 && chosen.size >= rows.size;
      all.indeterminate = chosen.size > 0 && !all.checked;
    }
  }
  function move(step) {
    const names = [...rows.keys()];
    if (!names.length) return;
    const place = names.indexOf(at) + step;
    at = names[Math.max(0, Math.min(names.length - 1, at === null ? 0 : place))];
    mark();
    const { tr } = rows.get(at);
    tr.scrollIntoView({ block: "nearest" });
    tr.querySelector("a, button, input:not([type=checkbox])")?.focus({ preventScroll: true });
  }
  if (href || pick) {
    const group = "In a list";
    onKey("j", "Next row", () => move(1), { signal, group });
    onKey("k", "Row before", () => move(-1), { signal, group });
    if (href) onKey("Enter", "Open the row", (event) => !at || event.target.closest("a, button, summary") ? false : (location.hash = href(rows.get(at).row), true), { signal, group });
    if (pick) onKey("x", "Choose the row", () => at && choose(at, !chosen.has(at)), { signal, group });
  }

  function sortBy(wanted) {
    order = wanted;
    markOrder();
  }
  markOrder();

  function set(list) {
    const names = new Set(list.map(key));
    for (const [name, { tr }] of rows) {
      if (names.has(name)) continue;
      tr.remove();
      rows.delete(name);
    }
    let place = body.firstChild;
    const next = new Map();
    for (const row of list) {
      const name = key(row);
      const one = rows.get(name) ?? make(row);
      update(one, row);
      next.set(name, one);
      if (one.tr === place) place = place.nextSibling;
      else body.insertBefore(one.tr, place);
    }
    rows.clear();
    for (const [name, one] of next) rows.set(name, one);
    const before = chosen.size;
    for (const name of [...chosen]) if (!rows.has(name)) chosen.delete(name);
    if (at !== null && !rows.has(at)) at = null;
    frame.hidden = list.length === 0;
    blank.hidden = list.length > 0;
    mark();
    if (pick && chosen.size !== before) pick([...chosen]);
  }
  function unpick() {
    chosen.clear();
    mark();
    pick?.([]);
  }
  return { node, set, unpick, sortBy, picked: () => [...chosen] };
}
