// The filter of requests: `state:running priority:0..9 task:send_mail tag:nightly tenant:acme age:>10m id:abc*`.

export const STATES = ["running", "waiting", "working", "active", "paused", "cancelling", "expiring", "ended", "done", "failed", "partly_failed", "repaired", "cancelled", "lost"];
const UNITS = { s: 1, m: 60, h: 3600, d: 86_400 };

/** The qualifiers: what each means, and how one looks. */
export const QUALIFIERS = {
  state: ["state:", "running, paused, done, …"],
  priority: ["priority:", "5 or 0..9; 0 is the most urgent"],
  task: ["task:", "with calls of this task; several: any of them"],
  tag: ["tag:", "has this tag; several: all of them"],
  tenant: ["tenant:", "of this tenant; several: any of them"],
  age: ["age:", ">10m or <1h since the submission"],
  id: ["id:", "abc* begins like this"],
};

export const WORD = /(?:[^\s"]|"[^"]*"|")+/g; // the name of a task may have spaces: task:"send mail"

/** An error in a filter, as one sentence. */
export class FilterError extends Error {}

/**
 * Returns {query, only} of a filter. `query` are the parameters of GET v1/requests. `only(row)` is a further choice
 * that the server does not make: waiting requests have no worker, working ones have. Throws FilterError.
 */
export function parse(text) {
  const query = {};
  let only = null;
  const add = (name, value) => (query[name] = [...(query[name] ?? []), value]);
  for (const word of text.match(WORD) ?? []) {
    const at = word.indexOf(":");
    const [name, value] = at < 0 ? ["id", word] : [word.slice(0, at).toLowerCase(), word.slice(at + 1).replaceAll('"', "")];
    if (!(name in QUALIFIERS)) throw new FilterError(`${word} is not understood: ${near(name)}.`);
    if (!value) throw new FilterError(`${word} has no value: ${QUALIFIERS[name][1]}.`);
    if (name === "state") only = state(value.toLowerCase(), add) ?? only;
    else if (name === "priority") for (const one of range(value)) add("priority", one);
    else if (name === "age") age(value, query);
    else if (name === "id") prefix(value, query);
    else add(name, value);
  }
  if (query.older_s !== undefined && query.newer_s !== undefined && query.older_s >= query.newer_s) {
    throw new FilterError("No request is older than the first age and newer than the second: change one.");
  }
  return { query, only };
}

function near(name) {
  const known = Object.keys(QUALIFIERS);
  const found = known.find((one) => one.startsWith(name.slice(0, 2)) && name);
  return found ? `did you mean ${found}:` : `write ${known.map((one) => `${one}:`).join(" ")}`;
}

function state(value, add) {
  if (!STATES.includes(value)) {
    const found = STATES.find((one) => one.startsWith(value.slice(0, 2)));
    throw new FilterError(`state:${value} is no state: ${found ? `did you mean ${found}` : `the states are ${STATES.join(", ")}`}.`);
  }
  if (value !== "waiting" && value !== "working") {
    add("state", value);
    return null;
  }
  add("state", "active");
  return value === "waiting" ? (row) => row.held === 0 : (row) => row.held > 0;
}

function range(value) {
  const match = /^(\d{1,2})(?:\.\.(\d{1,2}))?$/.exec(value);
  const [low, high] = match ? [Number(match[1]), Number(match[2] ?? match[1])] : [1, 0];
  if (low > high) throw new FilterError(`priority:${value} is no priority: write 0 to 99, or 0..9.`);
  return Array.from({ length: high - low + 1 }, (_, place) => low + place);
}

function age(value, query) {
  const match = /^([<>])(\d+(?:\.\d+)?)([smhd])$/.exec(value);
  if (!match) throw new FilterError(`age:${value} is no age: write >10m or <1h; the units are s, m, h and d.`);
  query[match[1] === ">" ? "older_s" : "newer_s"] = Number(match[2]) * UNITS[match[3]];
}

function prefix(value, query) {
  const text = value.replace(/\*$/, "");
  if (/[^\w.:-]/.test(text)) throw new FilterError(`id:${value} cannot be an id: ids have letters, digits and _ . : -`);
  if (query.id_prefix) throw new FilterError("Two beginnings of an id cannot both fit: leave one out.");
  query.id_prefix = text;
}

/** Returns what can follow a text: [{text, hint}], where `text` replaces its last word. `seen` has tags, tenants and tasks. */
export function hints(text, seen) {
  const word = /\S*$/.exec(text)[0];
  const at = word.indexOf(":");
  if (at < 0) {
    return Object.values(QUALIFIERS).filter(([start]) => start.startsWith(word)).map(([start, hint]) => ({ text: start, hint }));
  }
  const name = word.slice(0, at);
  const values = { state: STATES, tag: seen.tags, tenant: seen.tenants, task: seen.tasks, priority: ["0..9", "10..49", "50..99"], age: [">10m", ">1h", "<1h", "<1d"] }[name] ?? [];
  return values.filter((value) => value.startsWith(word.slice(at + 1)) && value !== word.slice(at + 1)).map((value) => ({ text: `${name}:${value}`, hint: "" }));
}
