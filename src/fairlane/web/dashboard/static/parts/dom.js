// Makes elements. Text is only ever set as text, so nothing that is shown can become markup. A character that could
// change the order of what is read, or that no screen shows, is written as its number.

// Controls but tab and newline, marks of direction, separators of lines, and what has no width. Two that join letters
// stay, because some scripts and emoji need them. `cli` escapes the same in common/text.py.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Returns text whose characters are all to be seen, in their order. */
export const visible = (text) => text.replace(HIDDEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Returns an element: `on*` are listeners, `style` an object, other names attributes; null leaves one out. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element of SVG, as `el`. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

const READ = new Set(["title", "aria-label", "placeholder", "alt"]); // attributes that a person reads

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "indeterminate") node[name] = value;
    else node.setAttribute(name, value === true ? "" : READ.has(name) ? visible(String(value)) : String(value));
  }
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false && one !== "")
    .map((one) => (one instanceof Node ? one : visible(String(one))));
}

/** Replaces the children of a node. */
export function show(node, ...children) {
  node.replaceChildren(...flat(children));
  return node;
}

/** Returns a button with a listener; `kind` are further classes. */
export function button(text, onclick, { kind = "", icon: name = null, label = null, ...rest } = {}) {
  return el("button", { type: "button", class: `button ${kind}`.trim(), onclick, "aria-label": label, title: label, ...rest },
    name && icon(name), text);
}

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-3H4z",
  requests: "M4 6h16M4 12h11M4 18h6",
  workers: "M5 5h14v6H5zM5 13h14v6H5zM8.5 8h.01M8.5 16h.01M12 8h4M12 16h4",
  tasks: "M4 5h6v6H4zM14 8h6M4 15h6v4H4zM14 17h6",
  dead: "M12 4 2.8 20h18.4zM12 10v4M12 17h.01",
  flows: "M4 5h5v5H4zM15 5h5v5h-5zM15 15h5v4h-5zM9 7.5h6M12 7.5V17h3",
  schedules: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3.5 2",
  ladder: "M4 5h16M4 10h12M4 15h9M4 20h4",
  shares: "M12 12V3a9 9 0 1 0 9 9zM15 3.5A9 9 0 0 1 20.5 9H15z",
  redis: "M12 4c4.4 0 8 1.2 8 2.8S16.4 9.6 12 9.6 4 8.4 4 6.8 7.6 4 12 4zM4 6.8v10.4C4 18.8 7.6 20 12 20s8-1.2 8-2.8V6.8M4 12c0 1.6 3.6 2.8 8 2.8s8-1.2 8-2.8",
  audit: "M6 3h9l4 4v14H6zM14 3v5h5M9 12h7M9 16h7",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  theme: "M12 3v2M12 19v2M5 12H3M21 12h-2M6 6 5 5M18 18l1 1M18 6l1-1M6 18l-1 1M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z",
  help: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM9.5 9.5a2.5 2.5 0 1 1 3.4 2.3c-.6.3-.9.7-.9 1.4v.3M12 17h.01",
  out: "M10 4H5v16h5M15 8l4 4-4 4M9 12h10",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  play: "M8 5.5v13l10.5-6.5z",
  pause: "M9 5.5v13M15 5.5v13",
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M7 7l10 10M17 7 7 17",
  alert: "M12 5v9M12 18.5h.01",
  dash: "M6 12h12",
  clock: "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16zM12 8v4l2.5 1.5",
  again: "M20 11a8 8 0 0 0-14.5-4L4 9M4 4v5h5M4 13a8 8 0 0 0 14.5 4L20 15M20 20v-5h-5",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13",
  limit: "M4 17a8 8 0 1 1 16 0M12 17l4-5",
  up: "M12 19V6M6 11l6-6 6 6",
  down: "M7 10l5 5 5-5",
  back: "M15 5l-7 7 7 7",
  more: "M6 12h.01M12 12h.01M18 12h.01",
};

/** Returns a picture beside a word; it has no meaning of its own. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}
