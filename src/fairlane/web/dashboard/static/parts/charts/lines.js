// Lines over time.
import { svg } from "../dom.js";
import { clock, compact } from "../format.js";
import { anchor, chart, scale, series, STEPS, ticks, timeTicks } from "./frame.js";

const LEFT = 44;
const BOTTOM = 22;
const TOP = 8;

/**
 * Returns a chart of lines: update({names, points, from, to, log}), where a point is [ms, value, value, ...] and null is a gap.
 * `unit` follows each value in the tip. `title` describes the chart. With `filled`, the area below a line is tinted.
 * `steps` are those of the axis, which reaches `least` while every value is 0. A line ends where nothing was measured for `gapMs`.
 */
export function lineChart({ title, height = 180, format = compact, unit = "", filled = false, steps = STEPS.decimal, least = 1, gapMs = Infinity }) {
  return chart(({ names, points, from, to }, width) => {
    const start = from ?? points[0]?.[0] ?? 0;
    const end = to ?? points.at(-1)?.[0] ?? 1;
    const most = Math.max(0, ...points.flatMap((point) => point.slice(1).filter((value) => value !== null)));
    const marks = ticks(most || least, 4, steps);
    const x = scale([start, end], [LEFT, width - 6]);
    const y = scale([0, marks.at(-1)], [height - BOTTOM, TOP]);
    const nodes = [
      marks.map((value) => [
        svg("line", { class: "grid-line", x1: LEFT, x2: width - 6, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)),
      ]),
      timeTicks(start, end, Math.max(2, Math.floor(width / 110))).map(({ at, text }) =>
        svg("text", { x: x(at), y: height - 6, "text-anchor": anchor(x(at), LEFT, width - 6) }, text)),
      names.map((_, place) => paths(points, place + 1, { x, y, gapMs }, filled && y(0), series(place))),
    ];
    const last = points.at(-1);
    const now = last ? names.map((name, place) => `${name} ${last[place + 1] === null ? "unknown" : format(last[place + 1]) + unit}`).join(", ") : "no data";
    return {
      height,
      nodes,
      label: `${title}: now ${now}`,
      at(px, py) {
        const near = points.reduce((best, point) => (best && Math.abs(x(best[0]) - px) <= Math.abs(x(point[0]) - px) ? best : point), null);
        if (!near) return null;
        const text = names.map((name, place) => `${name}: ${near[place + 1] === null ? "–" : format(near[place + 1]) + unit}`);
        return { x: x(near[0]), y: py, text: `${clock(near[0])}\n${text.join("\n")}` };
      },
    };
  });
}

function paths(points, place, { x, y, gapMs }, ground, kind) {
  const parts = [[]];
  let before = Infinity;
  for (const point of points) {
    if (point[0] - before > gapMs) parts.push([]);
    before = point[0];
    if (point[place] === null || point[place] === undefined) parts.push([]);
    else parts.at(-1).push([x(point[0]), y(point[place])]);
  }
  return parts.filter((part) => part.length).map((part) => {
    const line = part.map(([px, py], at) => `${at ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    return svg("g", { class: kind },
      ground !== false && svg("path", { class: "area", d: `${line}L${part.at(-1)[0].toFixed(1)} ${ground}L${part[0][0].toFixed(1)} ${ground}Z` }),
      part.length === 1 ? svg("circle", { class: "mark", cx: part[0][0], cy: part[0][1], r: 2 }) : svg("path", { class: "stroke", d: line }));
  });
}
