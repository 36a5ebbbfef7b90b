// Toasts, and dialogs that say what will happen before it does.
import { button, el, icon, show } from "./dom.js";

const place = el("div", { class: "toasts", role: "status", "aria-live": "polite" });
document.body.append(place);

/** Shows a sentence for some seconds; an error stays until it is closed. */
export function toast(text, { bad = false } = {}) {
  const one = el("div", { class: bad ? "toast bad" : "toast" },
    el("p", {}, bad ? el("b", { class: "bad" }, "Refused. ") : null, text),
    button("", () => one.remove(), { kind: "plain small", icon: "close", label: "Close the message" }));
  place.append(one);
  while (place.children.length > 4) place.firstChild.remove();
  if (!bad) setTimeout(() => one.remove(), 6000);
}

/** Shows an error of a call. */
export const toastProblem = (error) => {
  if (error.name !== "AbortError") toast(error.message, { bad: true });
};

/**
 * Asks, and then acts. `effect` says what will happen: a sentence, a node, or a promise of one while it is
 * counted; if it fails, the action cannot be chosen. `fields` are inputs: {name, label, type, value, hint, ...}.
 * `act(values)` does it; a refusal is shown in the dialog. Returns what `act` returned; null: not done.
 */
export function ask({ title, effect, fields = [], action, danger = false, act }) {
  return new Promise((resolve) => {
    let result = null;
    const inputs = fields.map(fieldOf);
    const refusal = el("p", { class: "notice bad", role: "alert", hidden: true });
    const box = el("div", { class: "effect", "aria-live": "polite" });
    const confirm = el("button", { type: "submit", class: danger ? "button main danger" : "button main" }, action);
    const leave = button("Leave it", () => dialog.close());
    const dialog = el("dialog", { "aria-labelledby": "ask-title" },
      el("form", { method: "dialog", onsubmit: submit, novalidate: true },
        el("h2", { id: "ask-title" }, title), effect ? box : null, inputs.map((one) => one.node), refusal,
        el("div", { class: "buttons" }, leave, confirm)));

    async function submit(event) {
      event.preventDefault();
      refusal.hidden = true;
      confirm.disabled = true;
      try {
        result = (await act(Object.fromEntries(inputs.map((one) => [one.name, one.read()])))) ?? true;
        dialog.close();
      } catch (error) {
        show(refusal, error.message).hidden = false;
        confirm.disabled = false;
      }
    }
    async function settle() {
      if (effect instanceof Promise) {
        confirm.disabled = true;
        show(box, el("span", { class: "muted" }, "Counting …"));
      }
      try {
        const { node, empty } = await Promise.resolve(effect).then((one) => (one?.node ? one : { node: one }));
        show(box, node);
        confirm.disabled = Boolean(empty);
      } catch (error) {
        show(box, error.message);
      }
    }
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (effect) settle();
    (inputs[0]?.input ?? (confirm.disabled ? leave : confirm)).focus(); // nothing disabled can have the focus
  });
}

function fieldOf({ name, label, type = "text", value = "", hint = null, choices = null, ...rest }) {
  const id = `field-${name}`;
  const input = choices
    ? el("select", { id, name, ...rest }, choices.map(([key, text]) => el("option", { value: key, selected: key === value }, text)))
    : el("input", { id, name, type, value, autocomplete: "off", "aria-describedby": hint && `${id}-hint`, ...rest });
  const node = el("div", { class: "field" }, el("label", { for: id }, label), input,
    hint && el("span", { class: "muted small", id: `${id}-hint` }, hint));
  return { name, node, input, read: () => (type === "number" ? input.valueAsNumber : input.value) };
}

/** Shows a dialog with content and one button. */
export function inform(title, content, kind = "") {
  const dialog = el("dialog", { class: kind, "aria-labelledby": "inform-title" },
    el("form", { method: "dialog" },
      el("div", { class: "row spread" }, el("h2", { id: "inform-title" }, title),
        el("button", { class: "button plain small", "aria-label": "Close" }, icon("close"))), content));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
