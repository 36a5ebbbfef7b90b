// What all charts share: their place, their width, their scales, and what is shown below the pointer.
import { el, svg, show } from "../dom.js";

/**
 * Returns {node, update(data)}: a chart that is drawn again when its data or its width changes.
 * `draw(data, width)` returns {height, nodes, label, at}; `at(x, y)`, if it is there, returns what the tip says at
 * this place as {x, y, text}, or null. `label` describes the chart for those who cannot see it.
 */
export function chart(draw) {
  const tip = el("div", { class: "tip", hidden: true });
  const surface = svg("svg", { "aria-hidden": "true" });
  const node = el("div", { class: "chart" }, surface, tip);
  let data = null;
  let width = 0;
  let at = null;

  function redraw() {
    if (data === null || !width) return;
    const found = draw(data, width);
    at = found.at ?? null;
    surface.setAttribute("viewBox", `0 0 ${width} ${found.height}`);
    surface.setAttribute("height", found.height);
    surface.removeAttribute("aria-hidden");
    surface.setAttribute("role", "img");
    surface.setAttribute("aria-label", found.label);
    show(surface, found.nodes);
  }
  function point(event) {
    const box = surface.getBoundingClientRect();
    const found = at?.(event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !found;
    if (!found) return;
    show(tip, found.text);
    const left = found.x + 12 + tip.offsetWidth > width ? found.x - 12 - tip.offsetWidth : found.x + 12;
    tip.style.setProperty("left", `${Math.max(0, left)}px`);
    tip.style.setProperty("top", `${Math.max(0, found.y - tip.offsetHeight / 2)}px`);
  }
  node.addEventListener("pointermove", point);
  node.addEventListener("pointerleave", () => (tip.hidden = true));
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width) return;
    width = now;
    redraw();
  }).observe(node);
  return {
    node,
    update(fresh) {
      data = fresh;
      redraw();
    },
  };
}

/** Returns a function from a value to a place. */
export function scale([low, high], [from, to]) {
  const size = high - low || 1;
  return (value) => from + ((value - low) / size) * (to - from);
}

const TIMES = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400].map((one) => one * 1000);

/** Steps between the marks of an axis: each returns the first round step that is at least `raw`. */
export const STEPS = {
  decimal: (raw) => round(raw, [1, 2, 2.5, 5, 10]),
  whole: (raw) => Math.max(1, round(raw, [1, 2, 5, 10])),
  ms: (raw) => (raw <= 2000 ? round(raw, [1, 2, 5, 10]) : TIMES.find((one) => one >= raw) ?? 86_400_000 * Math.ceil(raw / 86_400_000)),
  bytes: (raw) => 2 ** Math.ceil(Math.log2(raw)),
};

function round(raw, steps) {
  const power = 10 ** Math.floor(Math.log10(raw));
  return steps.map((one) => one * power).find((one) => one >= raw - 1e-12);
}

/** Returns about `count` round values from 0 to at least `most`, which is not 0. */
export function ticks(most, count = 4, stepOf = STEPS.decimal) {
  const step = stepOf(most / count);
  const found = [];
  for (let value = 0; value < most + step - 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

/** Returns times between two times that fall on round seconds, minutes or hours of the browser's clock. */
export function timeTicks(from, to, count = 5) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400].map((one) => one * 1000);
  const step = steps.find((one) => one >= (to - from) / count) ?? 86_400_000 * Math.ceil((to - from) / count / 86_400_000);
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  const two = (value) => String(value).padStart(2, "0");
  return found.map((at) => {
    const date = new Date(at);
    const text = step >= 86_400_000 ? `${two(date.getMonth() + 1)}-${two(date.getDate())}`
      : `${two(date.getHours())}:${two(date.getMinutes())}${step < 60_000 ? `:${two(date.getSeconds())}` : ""}`;
    return { at, text };
  });
}

/** Returns where a text at `x` is anchored, so that it stays between the edges. */
export const anchor = (x, left, right) => (x > right - 24 ? "end" : x < left + 24 ? "start" : "middle");

/** Returns a legend of names; the first is the first series, unless `placeOf` returns the place of a name's colour. */
export function legend(names, placeOf = (_, place) => place) {
  return el("ul", { class: "legend" }, names.map((name, place) => el("li", { class: series(placeOf(name, place)) }, el("i"), el("span", {}, name))));
}

/** Returns the class of a series: there are eight colours. */
export const series = (place) => `s${(place % 8) + 1}`;
