// How long sub-requests waited and ran: histograms of the last results.
import { panel, nothing } from "../../parts/bits.js";
import { barChart } from "../../parts/charts/bars.js";
import { el, show } from "../../parts/dom.js";
import { counted, number, span } from "../../parts/format.js";

const RANKS = [["half", 0.5], ["95 %", 0.95], ["99 %", 0.99]];

export function latencyPanel() {
  const counts = { waited: new Map(), ran: new Map() };
  const charts = { waited: barChart({ title: "Waited before its call", height: 128, place: 1 }), ran: barChart({ title: "Ran", height: 128 }) };
  const words = { waited: el("p", { class: "muted small" }), ran: el("p", { class: "muted small" }) };
  const empty = nothing("clock", "No sub-request has ended yet");
  const shown = el("div", { class: "stack", hidden: true },
    el("div", {}, el("h3", {}, "Ran in the handler"), words.ran, charts.ran.node),
    el("div", {}, el("h3", {}, "Waited before its call"), words.waited, charts.waited.node));
  return {
    node: panel("Latency", shown, empty),
    update(settled) {
      for (const name of ["waited", "ran"]) {
        for (const one of settled) for (const [ms, count] of one[name]) counts[name].set(ms, (counts[name].get(ms) ?? 0) + count);
        const sorted = [...counts[name]].sort(([a], [b]) => a - b);
        const total = sorted.reduce((sum, [, count]) => sum + count, 0);
        empty.hidden = total > 0;
        shown.hidden = total === 0;
        if (!total) return;
        show(words[name], `${counted(total, "result")}; ${RANKS.map(([text, share]) => `${text} within ${span(rank(sorted, total, share))}`).join(", ")}`);
        charts[name].update(bars(sorted));
      }
    },
  };
}

/** Returns the time within which this share is; a bucket counts as its smallest time. */
function rank(sorted, total, share) {
  let before = 0;
  for (const [ms, count] of sorted) {
    before += count;
    if (before >= share * total) return ms;
  }
  return 0;
}

/** Returns bars of equal ratios, without gaps between the first and the last; the server's buckets are 4 an octave. */
function bars(sorted) {
  const [first, last] = [place(sorted[0][0]) - 1, place(sorted.at(-1)[0]) + 1];
  const each = last - first < 44 ? 1 : last - first < 88 ? 2 : 4; // buckets of a bar
  const sums = new Map();
  for (const [ms, count] of sorted) {
    const bar = Math.floor(place(ms) / each);
    sums.set(bar, (sums.get(bar) ?? 0) + count);
  }
  const found = [];
  for (let bar = Math.max(0, Math.floor(first / each)); bar <= Math.floor(last / each); bar += 1) {
    const value = sums.get(bar) ?? 0;
    const [low, high] = [smallest(bar * each), smallest((bar + 1) * each)];
    found.push({ label: short(low), value, tip: `${span(low)} to ${span(high)}: ${number(value)}` });
  }
  return found;
}

/** Returns the number of the bucket that begins at a time: four to each octave of microseconds, from 4 µs. */
function place(ms) {
  const us = ms * 1000;
  if (us < 4) return 0;
  const octave = Math.floor(Math.log2(us));
  return 4 * (octave - 2) + Math.floor((us / 2 ** octave - 1) * 4 + 1e-9) + 1;
}

/** Returns the time at which a bucket begins. */
function smallest(bucket) {
  if (bucket <= 0) return 0;
  const octave = Math.floor((bucket - 1) / 4);
  return (2 ** (octave + 2) * (1 + ((bucket - 1) % 4) / 4)) / 1000;
}

function short(ms) {
  if (ms < 1) return ms ? `${Math.round(ms * 1000)} µs` : "0";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const [size, unit] = ms < 60_000 ? [1000, "s"] : ms < 3_600_000 ? [60_000, "min"] : [3_600_000, "h"];
  return `${Number((ms / size).toPrecision(2))} ${unit}`;
}
