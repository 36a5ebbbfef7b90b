// Asks for a token, and exchanges it for a cookie that scripts cannot read.
import { post } from "../parts/api.js";
import { el, show } from "../parts/dom.js";

/** Shows the form in `root`; calls `then` when the server has accepted a token. */
export function signIn(root, then) {
  const token = el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-hint" });
  const refusal = el("p", { class: "notice bad", role: "alert", hidden: true });
  const submit = el("button", { class: "button main", type: "submit" }, "Sign in");
  async function send(event) {
    event.preventDefault();
    submit.disabled = true;
    try {
      await post("dashboard/session", { token: token.value.trim() });
      then();
    } catch (error) {
      show(refusal, error.message).hidden = false;
      submit.disabled = false;
      token.select();
    }
  }
  show(root, el("main", { class: "signin", id: "main" },
    el("form", { onsubmit: send },
      el("img", { src: "dashboard/icon.svg", alt: "" }),
      el("h1", {}, "Sign in to Fairlane"),
      el("div", { class: "field" }, el("label", { for: "token" }, "Token"), token,
        el("span", { class: "muted small", id: "token-hint" }, "Create one with ", el("code", {}, "fairlane token create"), ".")),
      refusal, submit)));
  token.focus();
}
