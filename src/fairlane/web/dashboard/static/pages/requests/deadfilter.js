// The filter of dead letters: `task:send_mail since:1h until:10m error:"connection reset"`; other words are of the error.
import { FilterError, WORD } from "./filter.js";

const FIELDS = {
  task: ["task:", "that call this task; several: any of them"],
  error: ["error:", 'whose error has this text: error:"connection reset"'],
  since: ["since:", "10m, 2026-11-23T10:00Z or release; that died since then"],
  until: ["until:", "10m or 2026-11-23T10:00Z; that died before"],
  fingerprint: ["fingerprint:", "ten digits: those that failed like this"],
};
const LISTS = new Set(["task", "fingerprint"]);
const TIME = /^(\d+(\.\d+)?(ms|s|m|h|d)|\d{4}-\d\d-\d\dT.*(Z|[+-]\d\d:?\d\d))$/;

/** Returns the parameters of GET v1/errors. Throws FilterError. */
export function parse(text) {
  const query = {};
  for (const word of text.match(WORD) ?? []) {
    const at = word.indexOf(":");
    const isNamed = at > 0 && word.slice(0, at).toLowerCase() in FIELDS;
    const name = isNamed ? word.slice(0, at).toLowerCase() : "error";
    const value = (isNamed ? word.slice(at + 1) : word).replaceAll('"', "");
    if (!value) throw new FilterError(`${word} has no value: ${FIELDS[name][1]}.`);
    if ((name === "since" || name === "until") && !TIME.test(value) && !(name === "since" && value === "release")) throw new FilterError(`${word} is no time: write 10m, 1h or 2d, or a moment such as 2026-11-23T10:00Z.`);
    if (LISTS.has(name)) (query[name] ??= []).push(value);
    else if (name === "error" && query.error) query.error += ` ${value}`;
    else query[name] = value;
  }
  return query;
}

/** Returns the same choice as POST v1/bulk and .../dead/requeue take it. */
export const choiceOf = ({ task, fingerprint, ...others }) => ({ ...others, ...(task && { tasks: task }), ...(fingerprint && { fingerprints: fingerprint }) });

/** Returns what can follow a text; see hints of filter.js. `tasks` are those that were seen. */
export function hints(text, tasks) {
  const word = /\S*$/.exec(text)[0];
  const at = word.indexOf(":");
  if (at < 0) return Object.values(FIELDS).filter(([start]) => start.startsWith(word)).map(([start, hint]) => ({ text: start, hint }));
  const name = word.slice(0, at);
  const values = { task: tasks, since: ["10m", "1h", "24h", "7d", "release"], until: ["10m", "1h"] }[name] ?? [];
  return values.filter((value) => value.startsWith(word.slice(at + 1)) && value !== word.slice(at + 1)).map((value) => ({ text: `${name}:${/\s/.test(value) ? `"${value}"` : value}`, hint: "" }));
}
