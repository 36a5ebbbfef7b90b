import { nothing } from "../parts/bits.js";

export function mount(root) {
  root.append(nothing("dead", "Not here yet"));
}
