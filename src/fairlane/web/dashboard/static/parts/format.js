// Numbers and times as text. Times are milliseconds since 1970 by the clock of Redis.
import { el } from "./dom.js";

let skew = 0; // ms that this browser's clock is behind that of Redis

/** Notes the time of Redis, as a call returned it. */
export function setNow(ms) {
  if (ms) skew = ms - Date.now();
}

/** Returns the time of Redis now. */
export const now = () => Date.now() + skew;

const whole = new Intl.NumberFormat("en-US");
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** Returns 1,234,567. */
export const number = (value) => whole.format(value);

/** Returns 1.2M. */
export const compact = (value) => (Math.abs(value) < 10_000 ? number(Math.round(value)) : short.format(value));

/** Returns a share of 0 to 1 as 12%; it is 100% only if nothing is left. */
export function percent(share) {
  const value = share * 100;
  if (value > 99 && value < 100) return "99%";
  return `${value > 0 && value < 1 ? "<1" : Math.round(value)}%`;
}

/** Returns 12 kB, in powers of 1024. */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${left >= 100 || Number.isInteger(left) ? Math.round(left) : left.toFixed(1)} ${units[at]}`;
}

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** Returns a length of time with its two largest units: 3 h 20 min, 4.2 s, 350 ms. */
export function span(ms) {
  const value = Math.abs(ms);
  if (value < 1000) return `${value < 10 && value > 0 ? value.toFixed(1) : Math.round(value)} ms`;
  if (value < 10_000) return `${(value / 1000).toFixed(1)} s`;
  const at = UNITS.findIndex(([, size]) => value >= size);
  const [name, size] = UNITS[at];
  const big = Math.floor(value / size);
  if (at === UNITS.length - 1) return `${big} ${name}`;
  const [smallName, smallSize] = UNITS[at + 1];
  const small = Math.floor((value - big * size) / smallSize);
  return small ? `${big} ${name} ${small} ${smallName}` : `${big} ${name}`;
}

const AGES = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** Returns 4 min ago, or in 4 min. */
export function ago(ms) {
  const age = now() - ms;
  const [name, size] = AGES.find(([, one]) => Math.abs(age) >= one) ?? ["s", 1000];
  const value = Math.floor(Math.abs(age) / size);
  if (value === 0) return "now";
  return age >= 0 ? `${value} ${name} ago` : `in ${value} ${name}`;
}

/** Returns 2026-01-31 14:05:09 in the browser's time zone. */
export function clock(ms) {
  const at = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ` +
    `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Returns an element with the age of a time, and the time itself on hover. */
export function when(ms) {
  return ms ? el("time", { datetime: new Date(ms).toISOString(), title: clock(ms) }, ago(ms)) : el("span", { class: "muted" }, "–");
}

/** Returns a count with its noun: 1 request, 2 requests. */
export const counted = (count, noun, several = `${noun}s`) => `${number(count)} ${count === 1 ? noun : several}`;
