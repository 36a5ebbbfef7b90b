import { nothing } from "../parts/bits.js";

export function mount(root) {
  root.append(nothing("overview", "Not here yet"));
}
