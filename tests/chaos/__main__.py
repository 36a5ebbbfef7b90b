"""Runs chaos scenes by name and prints their reports: `python -m tests.chaos NAME ...`."""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.chaos import scenes
from tests.chaos.cluster import cluster_scenes, dead_primary, partition
from tests.chaos.producers import dependents, keyed
from tests.chaos.scenes import Scale
from tests.support.network.lab import why_not
from tests.support.output import say

# name -> sub-requests, faults, seconds
LONG = {
    "kill": (1_000_000, 1_000, 500.0),
    "varied": (100_000, 60, 60.0),
    "flows": (60_000, 40, 0.0),
    "schedules": (10_000, 40, 0.0),
    "calm": (1_000_000, 0, 0.0),
    "stop": (15_000, 8, 60.0),
    "scripts": (150_000, 60, 40.0),
    "proxy": (150_000, 45, 60.0),
    "always": (30_000, 8, 30.0),
    "everysec": (30_000, 8, 30.0),
    "clocks": (100_000, 30, 40.0),
    "recover": (0, 35, 0.0),
}
BY_KEY = {
    "keyed": (100_000, 120, 120.0),
    "keyed_stopped": (20_000, 8, 60.0),
    "keyed_restarted": (30_000, 8, 30.0),
    "ordered": (100_000, 120, 120.0),
    "ordered_stopped": (20_000, 8, 60.0),
    "ordered_restarted": (30_000, 8, 30.0),
    "reached": (4_000, 0, 0.0),
}
ON_CLUSTER = {
    "failover": (240_000, 30, 600.0),
    "failover_durable": (240_000, 30, 600.0),
    "reshard": (240_000, 1_000, 600.0),
    "dead_primary": (0, 1, 300.0),
}
IN_LAB = {
    "partition": (30_000, 15, 300.0),
    "partition_durable": (30_000, 15, 300.0),
}
RUNS = {
    **dict.fromkeys(LONG, scenes),
    **dict.fromkeys(BY_KEY, keyed),
    "flows": dependents,
    "schedules": dependents,
    **dict.fromkeys(ON_CLUSTER, cluster_scenes),
    "dead_primary": dead_primary,
    **dict.fromkeys(IN_LAB, partition),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--kills", type=int, help="how many faults")
    parser.add_argument("--sub-requests", type=int)
    parser.add_argument("--seconds", type=float, help="the faults are spread over at least so long")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    given = parser.parse_args()
    known = LONG | BY_KEY | ON_CLUSTER | IN_LAB
    if unknown := set(given.names) - set(known):
        parser.error(f"no such run: {', '.join(sorted(unknown))}")
    failed = 0
    for name in given.names or LONG | BY_KEY:
        sub_requests, faults, seconds = known[name]
        scale = Scale(
            given.sub_requests or sub_requests,
            faults if given.kills is None else given.kills,
            seconds if given.seconds is None else given.seconds,
            given.seed,
            given.workers,
        )
        say(f"{name}: seed {given.seed}")
        if name in IN_LAB and (reason := why_not()):
            say(f"  skipped: {reason}")
            continue
        report = getattr(RUNS[name], name)(scale)
        for line in report.lines():
            say(line)
        say(f"  {'GOOD' if report.is_good else 'WRONG'}")
        failed |= not report.is_good
    return failed


if __name__ == "__main__":
    sys.exit(main())
