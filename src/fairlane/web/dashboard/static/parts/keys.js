// The keyboard: single keys, and sequences as `g r`. Typing in a field is left alone.

const registered = [];
let before = "";
let timer = 0;

/** Registers a key until `signal` aborts; `text` says what it does in the list of keys; "" = not listed. */
export function onKey(keys, text, action, { signal, group = "Everywhere" } = {}) {
  const one = { keys, text, action, group };
  registered.push(one);
  signal?.addEventListener("abort", () => registered.splice(registered.indexOf(one), 1));
}

/** Returns the keys that work now, in groups. */
export function keyList() {
  const groups = new Map();
  for (const { keys, text, group } of registered) {
    if (text) groups.set(group, [...(groups.get(group) ?? []), { keys, text }]);
  }
  return groups;
}

function typing(target) {
  return target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  if (typing(event.target)) return;
  const pressed = before ? `${before} ${event.key}` : event.key;
  // The page's keys were registered last, and come first.
  const found = registered.findLast((one) => one.keys === pressed);
  clearTimeout(timer);
  before = "";
  if (found) {
    if (found.action(event) !== false) event.preventDefault();
  } else if (registered.some((one) => one.keys.startsWith(`${pressed} `))) {
    before = pressed;
    timer = setTimeout(() => (before = ""), 1500);
  }
});
