import { panel } from "../../parts/bits.js";
export function errorPanel() { return { node: panel("Failures"), async read() {} }; }
