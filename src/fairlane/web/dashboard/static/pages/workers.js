import { nothing } from "../parts/bits.js";

export function mount(root) {
  root.append(nothing("workers", "Not here yet"));
}
