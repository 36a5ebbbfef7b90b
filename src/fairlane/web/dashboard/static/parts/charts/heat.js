// A heat map: rows of cells; the darker, the more. Each row's sum stands beside it, so colour is not alone.
import { svg } from "../dom.js";
import { compact } from "../format.js";
import { chart } from "./frame.js";

const ROW = 18;

/** Returns a heat map: update({rows: [{label, values, note}], labels}); `title` describes it. */
export function heatMap({ title, left = 96, right = 56, format = compact }) {
  return chart(({ rows, labels }, width) => {
    const most = Math.max(1e-9, ...rows.flatMap((row) => row.values));
    const columns = Math.max(1, labels.length);
    const step = (width - left - right) / columns;
    const every = Math.ceil(columns / Math.max(1, Math.floor((width - left - right) / 64)));
    const height = rows.length * ROW + 22;
    const nodes = [
      rows.map((row, at) => [
        svg("text", { class: "strong", x: left - 8, y: at * ROW + 13, "text-anchor": "end" }, row.label),
        row.values.map((value, place) =>
          svg("rect", { class: value ? "s1 mark" : "lane", x: left + place * step + 0.5, y: at * ROW + 1, width: Math.max(1, step - 1), height: ROW - 2, rx: 2,
            opacity: value ? 0.18 + 0.82 * Math.sqrt(value / most) : 1 })),
        svg("text", { x: width - right + 8, y: at * ROW + 13 }, row.note ?? format(row.values.reduce((sum, value) => sum + value, 0))),
      ]),
      labels.map((label, place) => place % every === 0 && svg("text", { x: left + (place + 0.5) * step, y: height - 6, "text-anchor": "middle" }, label)),
    ];
    return {
      height,
      nodes,
      label: `${title}: ${rows.map((row) => `${row.label} ${row.note ?? ""}`).join("; ")}`,
      at(px, py) {
        const row = rows[Math.floor(py / ROW)];
        const place = Math.floor((px - left) / step);
        if (!row || place < 0 || place >= columns) return null;
        return { x: px, y: py, text: `${row.label}, ${labels[place]}: ${format(row.values[place] ?? 0)}` };
      },
    };
  });
}
