// Calls the server. Every path is relative to the page, so that it works below any prefix.

export const base = new URL(".", document.baseURI);

/** A call that was refused, or did not arrive: its message is one sentence. */
export class Problem extends Error {
  constructor(status, detail, type = "") {
    super(detail);
    this.status = status;
    this.type = type;
  }
}

const signedOut = new Set();

/** Calls `listener` when the server answers 401, until `signal` aborts. */
export function onSignedOut(listener, signal) {
  signedOut.add(listener);
  signal.addEventListener("abort", () => signedOut.delete(listener));
}

/** Returns the address of a path, with the query's values that are given; a list gives a name several times. */
export function address(path, query = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, one);
    }
  }
  return url;
}

async function send(method, path, { json, query, signal } = {}) {
  const options = { method, signal, headers: {}, credentials: "same-origin", redirect: "error" };
  if (json !== undefined) {
    options.body = JSON.stringify(json);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(address(path, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer: is it running, and is the network there?");
  }
  if (!response.ok) throw await problemOf(response, path);
  return response;
}

async function problemOf(response, path) {
  const found = await response.json().catch(() => ({}));
  const detail = sentence(found.detail || found.error || `the server answered ${response.status}`);
  if (response.status === 401 && path !== "dashboard/session") for (const listener of signedOut) listener();
  return new Problem(response.status, detail, found.type ?? "");
}

function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/** Makes one call; returns its JSON, or null if it has none. Throws Problem. */
export async function call(method, path, options) {
  const response = await send(method, path, options);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, json = {}, options = {}) => call("POST", path, { ...options, json });
export const put = (path, json, options = {}) => call("PUT", path, { ...options, json });
export const patch = (path, json, options = {}) => call("PATCH", path, { ...options, json });
export const remove = (path, options) => call("DELETE", path, options);

/**
 * Reads a stream of JSON lines: the first `most` of them, or what has come when nothing followed for `quietMs`.
 * The rest is left unread. Throws Problem.
 */
export async function lines(path, most, { query, signal, quietMs = 1500 } = {}) {
  const response = await send("GET", path, { query, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const quiet = () => new Promise((resolve) => setTimeout(resolve, quietMs, { done: true }));
  const found = [];
  let rest = "";
  while (found.length < most) {
    const { value, done } = await Promise.race([reader.read(), quiet()]);
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      const line = JSON.parse(part);
      if (line.problem) throw new Problem(line.problem.status, sentence(line.problem.detail));
      if (found.length < most) found.push(line);
    }
  }
  reader.cancel().catch(() => null);
  return found;
}

/** Returns a part of a path: an id may have any character. */
export const part = (text) => encodeURIComponent(text);
