// Watches the queue: one stream for a page, whose frames are the last minutes.
import { notice } from "./bits.js";
import { el, show } from "./dom.js";
import { setNow } from "./format.js";
import { stream } from "./live.js";

const KEPT = 600;

/** Frames come once a second; nothing watched the queue if there was none for so long. */
export const GAP_MS = 5000;

/**
 * Calls draw(frames, now) with each event until the page is left: `frames` are the last minutes, oldest first, `now`
 * has the details of the newest look. Above the page a notice says when Redis does not answer.
 */
export function watch({ signal, body }, draw) {
  const banner = el("div", { "aria-live": "polite" });
  body.prepend(banner);
  const frames = [];
  let shown = "";

  function say(text) {
    if (text === shown) return;
    shown = text;
    show(banner, text && notice(text));
  }
  stream("v1/live", {
    signal,
    onProblem: (problem) => say(problem.detail),
    on: {
      live(event) {
        const fresh = event.frames;
        if (fresh.length && frames.length && fresh[0].number <= frames.at(-1).number) frames.length = 0;
        frames.push(...fresh);
        if (frames.length > KEPT) frames.splice(0, frames.length - KEPT);
        say(event.away && `${event.away}. What is shown is from before; it goes on when Redis is back.`);
        if (!event.now) return;
        setNow(event.now.at_ms);
        draw(frames, event.now);
      },
    },
  });
}

/** Returns the sentence about what a look has left out, or "". */
export const cut = (now) => (now.is_exact ? "" : `There are many requests: sums by request are from a part of them.`);
