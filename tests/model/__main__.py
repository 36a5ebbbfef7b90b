"""Plays random steps on Redis and on the model, and prints the figures: `python -m tests.model`."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from tests.model.play.wire import Wire
from tests.model.runs import play
from tests.support.output import say
from tests.support.servers import server_process

STEPS = 60  # of one example
EXAMPLES = 500  # of one round; each has a seed of its own


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="of the first round")
    parser.add_argument("--kind", choices=server_process.KINDS, default="single")
    given = parser.parse_args()
    seed = secrets.randbelow(1_000_000_000) if given.seed is None else given.seed
    started, done, calls = time.monotonic(), 0, 0
    with server_process.run_server(given.kind) as server:
        wire = Wire(server)
        while done < given.steps:
            say(f"seed {seed}: python -m tests.model --steps 1 --seed {seed} repeats it")
            counts = play(wire, seed, examples=EXAMPLES, steps=STEPS)
            done, calls, seed = done + counts["steps"], calls + counts["calls"], seed + 1
            spent = time.monotonic() - started
            say(f"{done:,} steps, {calls:,} round trips, {spent:.0f} s: {done / spent:.0f} steps/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
