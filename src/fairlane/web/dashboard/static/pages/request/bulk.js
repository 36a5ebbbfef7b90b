import { el } from "../../parts/dom.js";
export function bulkBar() { return { node: el("div"), show() {} }; }
