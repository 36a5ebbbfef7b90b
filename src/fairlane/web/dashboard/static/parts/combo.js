// A field with hints below it, as the pattern "combobox" of ARIA describes it.
import { el, icon, show } from "./dom.js";

/**
 * Returns {node, input, error(text)}. `hints(text)` returns [{text, hint}] for the last word of the text; choosing
 * one replaces that word. `onChange(text)` is called when the text is entered, or rests.
 */
export function combo({ label, value, placeholder, hints, onChange }) {
  let list = [];
  let at = -1;
  let timer = 0;
  const box = el("ul", { class: "hints", role: "listbox", id: "hints", "aria-label": "Hints", hidden: true });
  const problem = el("p", { class: "bad small", id: "filter-problem", role: "alert", hidden: true });
  const input = el("input", {
    type: "search", value, placeholder, "aria-label": label, role: "combobox", "aria-expanded": "false", "aria-controls": "hints",
    "aria-autocomplete": "list", "aria-describedby": "filter-problem", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    "data-filter": true, oninput, onkeydown, onfocus: () => draw(), onblur: () => close(), onsearch: () => enter(),
  });
  const node = el("div", { class: "combo" }, icon("search"), input, el("kbd", { "aria-hidden": "true" }, "/"), box, problem);

  function oninput() {
    draw();
    clearTimeout(timer);
    timer = setTimeout(() => onChange(input.value), 350);
  }
  function enter() {
    clearTimeout(timer);
    close();
    onChange(input.value);
  }
  function draw() {
    list = hints(input.value).slice(0, 8);
    at = -1;
    show(box, list.map((one, place) => el("li", { role: "option", id: `hint-${place}`, "aria-selected": "false", onpointerdown: (event) => choose(event, place) },
      el("code", {}, one.text), one.hint && el("span", { class: "muted small" }, one.hint))));
    box.hidden = list.length === 0;
    input.setAttribute("aria-expanded", String(!box.hidden));
    input.removeAttribute("aria-activedescendant");
  }
  function close() {
    box.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }
  function choose(event, place) {
    event.preventDefault();
    const { text } = list[place];
    input.value = input.value.replace(/\S*$/, text) + (text.endsWith(":") ? "" : " ");
    oninput();
  }
  function move(step) {
    at = (at + step + list.length) % list.length;
    [...box.children].forEach((one, place) => one.setAttribute("aria-selected", String(place === at)));
    input.setAttribute("aria-activedescendant", `hint-${at}`);
  }
  function onkeydown(event) {
    const open = !box.hidden;
    if (event.key === "Escape") {
      if (open) close();
      else input.blur();
    } else if (event.key === "ArrowDown" && !open) draw();
    else if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp" && open) move(-1);
    else if ((event.key === "Enter" || event.key === "Tab") && open && at >= 0) choose(event, at);
    else if (event.key === "Enter") enter();
    else return;
    if (event.key !== "Tab") event.preventDefault();
  }
  return {
    node, input,
    error(text) {
      show(problem, text);
      problem.hidden = !text;
      input.setAttribute("aria-invalid", String(Boolean(text)));
    },
    set(text) {
      input.value = text;
      close();
      onChange(text);
    },
  };
}
