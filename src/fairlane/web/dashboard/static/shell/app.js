// Starts the dashboard: signs in, draws the frame, and shows the page that the address names.
import { get, onSignedOut, Problem, remove } from "../parts/api.js";
import { button, el, icon, show } from "../parts/dom.js";
import { keyList, onKey } from "../parts/keys.js";
import { onLink } from "../parts/live.js";
import { inform } from "../parts/messages.js";
import { PAGES, start } from "./router.js";
import { signIn } from "./signin.js";
import { nextTheme } from "./theme.js";

const app = document.getElementById("app");
const LINK = {
  live: "Live",
  paused: "Paused: this tab was hidden",
  lost: "No answer, trying again",
  idle: "Up to date",
};

async function begin() {
  let me;
  try {
    me = await get("v1/me");
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) return signIn(app, begin);
    show(app, el("div", { class: "signin" }, el("p", { class: "notice bad", role: "alert" }, error.message), button("Try again", begin)));
    return null;
  }
  if (!me.scopes.includes("view") && !me.scopes.includes("counts")) return refuse(me);
  return frame(me);
}

/** Says what the token of the cookie lacks: every page would be refused. */
function refuse(me) {
  const words = `The token ${me.name} may only ${me.scopes.join(" and ")}: the dashboard needs a token with the scope view or counts.`;
  async function again() {
    await remove("dashboard/session").catch(() => null);
    begin();
  }
  show(app, el("main", { class: "signin", id: "main" }, el("h1", {}, "This token may not look"),
    el("p", { class: "notice", role: "alert" }, words), button("Sign in with another token", again, { kind: "main" })));
  return null;
}

function frame(me) {
  const ended = new AbortController();
  const { signal } = ended;
  const side = el("nav", { class: "side", id: "pages", "aria-label": "Pages" });
  const main = el("main", { id: "main", tabindex: "-1" });
  const menu = button("", () => open(!side.classList.contains("open")), {
    kind: "plain small", icon: "menu", label: "Pages", "aria-expanded": "false", "aria-controls": "pages",
  });

  function open(on) {
    side.classList.toggle("open", on);
    menu.setAttribute("aria-expanded", String(on));
  }
  function leave() {
    ended.abort();
    begin();
  }
  async function signOut() {
    await remove("dashboard/session").catch(() => null);
    leave();
  }
  const pages = PAGES.filter((page) => !page.scope || me.scopes.includes(page.scope));
  const links = new Map(pages.map((page) => [page.name, linkOf(page)]));
  show(side, brand(me),
    el("ul", {}, [...links.values()].map((link) => el("li", {}, link))),
    el("div", { class: "foot" }, linkState(signal),
      me.has_tokens && el("div", {}, "Signed in as ", el("b", {}, me.name), el("br"), roleOf(me)),
      el("div", { class: "row" },
        button("", nextTheme, { kind: "plain small", icon: "theme", label: "Light or dark (t)" }),
        button("", help, { kind: "plain small", icon: "help", label: "Keys (?)" }),
        me.has_tokens && button("", signOut, { kind: "plain small", icon: "out", label: "Sign out" }))));
  show(app, el("a", { class: "skip", href: "#main", onclick: (event) => skip(event, main) }, "Skip to the page"),
    el("div", { class: "bar" }, menu, brand(me), linkState(signal)), side, main);
  keys(pages, signal);
  onSignedOut(leave, signal);
  start(main, me, signal, (page) => {
    open(false);
    for (const [name, link] of links) {
      if (name === page.name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  });
}

function linkOf({ name, title, icon: picture, keys: pressed }) {
  return el("a", { href: `#/${name}`, title: `${title} (${pressed})` }, icon(picture), title);
}

function brand(me) {
  return el("a", { class: "brand", href: "#/overview" }, el("img", { src: "dashboard/icon.svg", alt: "" }),
    el("span", {}, el("b", {}, "Fairlane"), el("small", { title: me.queue }, me.queue)));
}

function linkState(signal) {
  const text = el("span");
  const node = el("div", { class: "link" }, el("i"), text);
  onLink((state) => {
    node.dataset.state = state;
    show(text, LINK[state]);
  }, signal);
  return node;
}

function roleOf({ scopes }) {
  const role = ["admin", "operate", "view", "counts"].find((scope) => scopes.includes(scope));
  return { admin: "may do everything", operate: "may look and operate", view: "may only look", counts: "may see counts, and no data" }[role] ?? "may not look";
}

function skip(event, main) {
  event.preventDefault();
  main.focus();
}

function keys(pages, signal) {
  for (const page of pages) onKey(page.keys, page.title, () => (location.hash = `#/${page.name}`), { signal, group: "Go to" });
  onKey("t", "Light or dark", nextTheme, { signal });
  onKey("?", "These keys", help, { signal });
  onKey("/", "Filter", toFilter, { signal });
}

/** Moves to the filter; returns false if the page has none. */
function toFilter() {
  const field = document.querySelector("[data-filter]");
  field?.focus();
  return Boolean(field);
}

function help() {
  const groups = [...keyList()].map(([name, list]) => el("section", {}, el("h3", {}, name),
    el("ul", { class: "keys" }, list.map(({ keys: pressed, text }) =>
      el("li", {}, text, el("span", {}, pressed.split(" ").map((key) => [el("kbd", {}, key), " "])))))));
  inform("Keys", el("div", { class: "stack" }, groups), "help");
}

begin();
