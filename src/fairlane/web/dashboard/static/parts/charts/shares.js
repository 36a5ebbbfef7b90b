// Shares over time: columns that are full, whose parts have names.
import { el, show, svg } from "../dom.js";
import { clock, percent } from "../format.js";
import { anchor, chart, legend, scale, series, timeTicks } from "./frame.js";

const LEFT = 44;
const BOTTOM = 22;
const HEIGHT = 240;
const MOST = 7; // names; the others are summed up

/**
 * Returns {node, update({parts, names})}: `parts` are [ms, Map(name -> count)], `names` the largest first.
 * A name keeps its colour while it is shown, whatever its rank is. A time that nothing watched is left empty.
 */
export function shareChart() {
  const key = el("div");
  const colours = new Map();
  const inner = chart(draw);
  return {
    node: el("div", { class: "stack tight" }, key, inner.node),
    update({ parts, names }) {
      const shown = names.length > MOST + 1 ? [...names.slice(0, MOST), "others"] : names;
      colour(colours, shown);
      show(key, legend(shown, (name) => colours.get(name)));
      inner.update({ parts, shown, named: new Set(shown), colours });
    },
  };
}

/** Gives each name that has none a colour that no other shown name has; names in their order, so that a reload gives the same. */
function colour(colours, shown) {
  for (const name of colours.keys()) if (!shown.includes(name)) colours.delete(name);
  const free = [...Array(MOST + 1).keys()].filter((place) => ![...colours.values()].includes(place));
  for (const name of [...shown].sort()) if (!colours.has(name)) colours.set(name, free.shift() ?? 0);
}

function draw({ parts, shown, named, colours }, width) {
  const bins = binned(parts, Math.max(10, Math.floor((width - LEFT) / 8)), named);
  const y = scale([0, 1], [HEIGHT - BOTTOM, 6]);
  const step = (width - LEFT - 6) / Math.max(1, bins.length);
  const from = parts[0]?.[0] ?? 0;
  const to = parts.at(-1)?.[0] ?? 1;
  const x = scale([from, Math.max(to, from + 1)], [LEFT, width - 6]);
  const nodes = [[0, 0.25, 0.5, 0.75, 1].map((share) => [
    svg("line", { class: "grid-line", x1: LEFT, x2: width - 6, y1: y(share), y2: y(share) }),
    svg("text", { x: LEFT - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
  ])];
  bins.forEach((bin, at) => {
    let below = 0;
    shown.forEach((name) => {
      const share = bin.all ? (bin.counts.get(name) ?? 0) / bin.all : 0;
      if (!share) return;
      nodes.push(svg("g", { class: series(colours.get(name)) }, svg("rect", { class: "mark", x: LEFT + at * step, y: y(below + share), width: step + 0.3, height: Math.max(0, y(below) - y(below + share) - 1) })));
      below += share;
    });
  });
  nodes.push(timeTicks(from, to, Math.max(2, Math.floor(width / 110))).map(({ at, text }) =>
    svg("text", { x: x(at), y: HEIGHT - 6, "text-anchor": anchor(x(at), LEFT, width - 6) }, text)));
  const last = bins.at(-1);
  return {
    height: HEIGHT,
    nodes,
    label: `Shares: now ${last?.all ? wordsOf(last, shown).join(", ") : "none"}`,
    at(px, py) {
      const bin = bins[Math.floor((px - LEFT) / step)];
      return bin && px >= LEFT ? { x: px, y: py, text: `${clock(bin.at)}\n${bin.all ? wordsOf(bin, shown).join("\n") : "no lease was held"}` } : null;
    },
  };
}

const wordsOf = (bin, shown) => shown.filter((name) => bin.counts.get(name)).map((name) => `${name} ${percent(bin.counts.get(name) / bin.all)}`);

function binned(parts, most, named) {
  if (!parts.length) return [];
  const from = parts[0][0];
  const size = Math.max(1000, (parts.at(-1)[0] - from + 1) / most); // ms of a column
  const bins = Array.from({ length: Math.floor((parts.at(-1)[0] - from) / size) + 1 }, (_, at) => ({ at: from + at * size, all: 0, counts: new Map() }));
  for (const [at, counts] of parts) {
    const bin = bins[Math.floor((at - from) / size)];
    for (const [name, count] of counts) {
      const shown = named.has(name) ? name : "others";
      bin.counts.set(shown, (bin.counts.get(shown) ?? 0) + count);
      bin.all += count;
    }
  }
  return bins;
}
