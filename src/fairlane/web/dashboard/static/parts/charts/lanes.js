// Swim lanes: a row for each permit or worker, and a block for each time in which it was held.
import { svg } from "../dom.js";
import { span } from "../format.js";
import { anchor, chart, scale, series, timeTicks } from "./frame.js";

const ROW = 24;

/**
 * Returns swim lanes: update({rows: [{label, blocks: [{from, to, series, text, tip, open}]}], from, to, marks}).
 * An `open` block is still held: it has no right edge. `marks` are [{at, text}], lines across all rows.
 */
export function laneChart({ title, left = 132 }) {
  return chart(({ rows, from, to, marks = [] }, width) => {
    const side = Math.min(left, width * 0.34);
    const x = scale([from, Math.max(to, from + 1)], [side, width - 6]);
    const height = Math.max(1, rows.length) * ROW + 24;
    const most = Math.floor(side / 6.6);
    const nodes = [
      rows.map((row, at) => [
        svg("rect", { class: "lane", x: side, y: at * ROW + 2, width: Math.max(0, width - 6 - side), height: ROW - 4, rx: 3 }),
        svg("text", { class: "strong", x: 0, y: at * ROW + 16 }, row.label.length > most ? `…${row.label.slice(1 - most)}` : row.label),
        row.blocks.map((block) => blockOf(block, at, x, from, to)),
      ]),
      marks.map((mark) => svg("line", { class: "cursor", x1: x(mark.at), x2: x(mark.at), y1: 0, y2: height - 22 })),
      timeTicks(from, to, Math.max(2, Math.floor((width - side) / 90))).map(({ at, text }) => svg("text", { x: x(at), y: height - 6, "text-anchor": anchor(x(at), side, width - 6) }, text)),
    ];
    return {
      height,
      nodes,
      label: `${title}: ${rows.map((row) => `${row.label} ${row.blocks.length}`).join("; ") || "none"}`,
      at(px, py) {
        const row = rows[Math.floor(py / ROW)];
        const block = row?.blocks.findLast((one) => x(one.from) - 1 <= px && px <= x(one.to ?? to) + 1);
        return block ? { x: px, y: py, text: `${row.label}\n${block.tip ?? `${block.text ?? ""} ${span((block.to ?? to) - block.from)}`}` } : null;
      },
    };
  });
}

function blockOf(block, row, x, from, to) {
  const start = x(Math.max(block.from, from));
  const size = Math.max(2, x(Math.min(block.to ?? to, to)) - start);
  const shown = block.text && size > block.text.length * 6.4 + 8;
  return svg("g", { class: series(block.series ?? 0) },
    svg("rect", { class: block.open ? "mark block open" : "mark block", x: start, y: row * ROW + 3, width: size, height: ROW - 6, rx: 3 }),
    shown && svg("text", { class: "inside", x: start + 5, y: row * ROW + 16 }, block.text));
}
