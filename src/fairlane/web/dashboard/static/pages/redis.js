import { nothing } from "../parts/bits.js";

export function mount(root) {
  root.append(nothing("redis", "Not here yet"));
}
