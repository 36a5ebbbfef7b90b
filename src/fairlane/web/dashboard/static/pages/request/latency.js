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
        charts[name].update(octaves(sorted));
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

/** Returns bars of a power of two each, without gaps between the first and the last. */
function octaves(sorted) {
  const sums = new Map();
  for (const [ms, count] of sorted) {
    const power = ms < 1 ? 0 : Math.floor(Math.log2(ms)) + 1;
    sums.set(power, (sums.get(power) ?? 0) + count);
  }
  const powers = [...sums.keys()];
  const [first, last] = [Math.max(0, Math.min(...powers) - 1), Math.max(...powers) + 1];
  return Array.from({ length: last - first + 1 }, (_, place) => {
    const power = first + place;
    const [low, high] = [power ? 2 ** (power - 1) : 0, 2 ** power];
    const value = sums.get(power) ?? 0;
    return { label: low ? short(low) : "0", value, tip: `${span(low)} to ${span(high)}: ${number(value)}` };
  });
}

function short(ms) {
  if (ms < 1000) return `${ms} ms`;
  return ms < 60_000 ? `${Math.round(ms / 1000)} s` : ms < 3_600_000 ? `${Math.round(ms / 60_000)} min` : `${Math.round(ms / 3_600_000)} h`;
}
