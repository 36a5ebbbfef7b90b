// A heat map of lanes and time on a canvas: SVG would need 30,000 cells.
import { nothing } from "../bits.js";
import { el, show } from "../dom.js";
import { clock, compact, number } from "../format.js";
import { timeTicks } from "./frame.js";

const LEFT = 40;
const BOTTOM = 20;
const STEPS = [0.05, 0.25, 0.5, 1];

/** Returns {node, update(frames, all)}; `all` shows also lanes in which nothing waited. */
export function ladderChart() {
  const canvas = el("canvas", { class: "ladder", tabindex: "0", role: "img" });
  const words = el("p", { class: "ladder-words", role: "status" });
  const key = el("div", { class: "ladder-key", "aria-hidden": "true" });
  const blank = nothing("ladder", "No token waits", "Work that is submitted appears here.");
  const node = el("div", { class: "chart" }, key, canvas, words, blank);
  let frames = [];
  let lanes = [];
  let all = false;
  let mark = null; // {lane, number}: a place among `lanes`, and the number of a frame

  const size = () => {
    const width = node.clientWidth;
    const row = all ? 4 : Math.max(10, Math.min(26, 320 / Math.max(1, lanes.length)));
    return { width, row, height: lanes.length * row + BOTTOM };
  };
  const columns = ({ width }) => Math.max(1, Math.min(frames.length, Math.floor((width - LEFT) / 2)));

  function draw() {
    const box = size();
    blank.hidden = lanes.length > 0;
    key.hidden = canvas.hidden = words.hidden = lanes.length === 0;
    if (!box.width || !lanes.length || !frames.length) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    canvas.style.setProperty("height", `${box.height}px`);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(canvas);
    const [ink, ground, text, line] = [style.color, style.outlineColor, style.caretColor, style.columnRuleColor];
    const count = columns(box);
    const shown = frames.slice(-count);
    const step = (box.width - LEFT) / count;
    const most = Math.max(1, ...shown.flatMap((one) => Object.values(one.lanes)));
    pen.fillStyle = ground;
    pen.fillRect(LEFT, 0, box.width - LEFT, lanes.length * box.row);
    lanes.forEach((lane, at) => {
      pen.globalAlpha = 1;
      shown.forEach((frame, place) => {
        const value = frame.lanes[lane] ?? 0;
        const x = LEFT + place * step;
        pen.fillStyle = ink;
        if (value) {
          pen.globalAlpha = alpha(value / most);
          pen.fillRect(x, at * box.row, step + 0.4, box.row - 1);
        }
        if (frame.held_by_lane[lane] && box.row >= 8) {
          pen.globalAlpha = 1;
          pen.fillStyle = line;
          pen.fillRect(x, (at + 1) * box.row - 3, step + 0.4, 2);
        }
      });
      pen.globalAlpha = 1;
      if (!all || lane % 10 === 0) label(pen, text, String(lane), LEFT - 8, Math.max(9, at * box.row + (all ? 4 : box.row / 2 + 4)), "right");
    });
    for (const { at, text: when } of timeTicks(shown[0].at_ms, shown.at(-1).at_ms, Math.max(2, Math.floor(box.width / 130)))) {
      const x = LEFT + ((at - shown[0].at_ms) / Math.max(1, shown.at(-1).at_ms - shown[0].at_ms)) * (box.width - LEFT);
      label(pen, text, when, Math.min(box.width - 26, Math.max(LEFT + 26, x)), box.height - 5, "center");
    }
    outline(pen, text, shown, box, step);
    describe(shown, most);
  }
  function outline(pen, colour, shown, box, step) {
    if (!mark) return;
    const place = shown.findIndex((one) => one.number === mark.number);
    if (place < 0) return;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.5;
    pen.strokeRect(LEFT + place * step, mark.lane * box.row, Math.max(step, 3), box.row - 1);
  }
  function describe(shown, most) {
    const last = shown.at(-1);
    const full = lanes.filter((lane) => last.lanes[lane]).map((lane) => `priority ${lane}: ${number(last.lanes[lane])}`);
    canvas.setAttribute("aria-label", `Tokens by priority over time. Now ${full.slice(0, 10).join(", ") || "nothing waits"}. The table below has all.`);
    const counts = [...new Set(STEPS.map((share) => Math.round(most * share)))].filter((count) => count > 0);
    show(key, counts.map((count) => [el("i", { style: { opacity: alpha(count / most) } }), el("span", {}, compact(count))]),
      el("b"), el("span", {}, "leases held"));
  }
  function say() {
    const frame = mark && frames.find((one) => one.number === mark.number);
    const lane = mark && lanes[mark.lane];
    show(words, frame && lane !== undefined
      ? `Priority ${lane} at ${clock(frame.at_ms)}: ${number(frame.lanes[lane] ?? 0)} tokens wait, ${number(frame.held_by_lane[lane] ?? 0)} leases are held.`
      : "Point at a cell, or press an arrow key, to read it.");
  }
  function choose(lane, place) {
    const shown = frames.slice(-columns(size()));
    if (!shown.length || !lanes.length) return;
    const within = (value, top) => Math.max(0, Math.min(top, value));
    mark = { lane: within(lane, lanes.length - 1), number: shown[within(place, shown.length - 1)].number };
    say();
    draw();
  }
  canvas.addEventListener("pointermove", (event) => {
    const area = canvas.getBoundingClientRect();
    const box = size();
    choose(Math.floor((event.clientY - area.top) / box.row), Math.floor((event.clientX - area.left - LEFT) / ((box.width - LEFT) / columns(box))));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const shown = frames.slice(-columns(size()));
    const place = mark ? shown.findIndex((one) => one.number === mark.number) : shown.length - 1;
    choose((mark?.lane ?? 0) + (mark ? step[0] : 0), (place < 0 ? 0 : place) + (mark ? step[1] : 0));
  });
  new ResizeObserver(draw).observe(node);
  say();
  return {
    node,
    update(fresh, everything) {
      frames = fresh;
      all = everything;
      const used = new Set(frames.flatMap((one) => [...Object.keys(one.lanes), ...Object.keys(one.held_by_lane)]).map(Number));
      const before = lanes[mark?.lane];
      lanes = all ? Array.from({ length: 100 }, (_, at) => at) : [...used].sort((a, b) => a - b);
      if (mark) mark.lane = Math.max(0, lanes.indexOf(before));
      draw();
    },
  };
}

const alpha = (share) => 0.15 + 0.85 * Math.sqrt(share);

function label(pen, colour, text, x, y, align) {
  pen.fillStyle = colour;
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = align;
  pen.fillText(text, x, y);
}
