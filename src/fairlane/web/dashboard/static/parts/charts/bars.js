// Bars: upright ones for a histogram, level ones for a ranking.
import { svg } from "../dom.js";
import { compact } from "../format.js";
import { chart, scale, series, STEPS, ticks } from "./frame.js";

const LEFT = 44;
const BOTTOM = 22;
const TOP = 8;

/** Returns a chart of upright bars: update([{label, value, tip}]); `title` describes it. */
export function barChart({ title, height = 160, format = compact, place = 0 }) {
  return chart((bars, width) => {
    const marks = ticks(Math.max(1, ...bars.map((bar) => bar.value)), 3, STEPS.whole);
    const y = scale([0, marks.at(-1)], [height - BOTTOM, TOP]);
    const step = (width - LEFT - 6) / Math.max(1, bars.length);
    const every = Math.ceil(bars.length / Math.max(1, Math.floor((width - LEFT) / 56)));
    const nodes = [
      marks.map((value) => [
        svg("line", { class: "grid-line", x1: LEFT, x2: width - 6, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, format(value)),
      ]),
      bars.map((bar, at) => {
        const left = LEFT + at * step;
        return [
          svg("g", { class: series(bar.place ?? place) },
            svg("rect", { class: "mark", x: left + step * 0.1, y: y(bar.value), width: Math.max(1, step * 0.8), height: Math.max(bar.value ? 1.5 : 0, y(0) - y(bar.value)), rx: Math.min(2, step / 4) })),
          at % every === 0 && svg("text", { x: left + step / 2, y: height - 6, "text-anchor": "middle" }, bar.label),
        ];
      }),
    ];
    return {
      height,
      nodes,
      label: `${title}: ${bars.filter((bar) => bar.value).map((bar) => bar.tip ?? `${bar.label} ${format(bar.value)}`).join("; ") || "no data"}`,
      at(px, py) {
        const bar = bars[Math.floor((px - LEFT) / step)];
        return bar && px >= LEFT ? { x: px, y: py, text: bar.tip ?? `${bar.label}: ${format(bar.value)}` } : null;
      },
    };
  });
}
