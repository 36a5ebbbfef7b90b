"""Runs the measurements: Fairlane and its peers side by side, then Fairlane alone.

    python -m bench                                         everything: about 35 minutes
    python -m bench --only drain --peers rq,saq --runs 1 --scale 0.1
    python -m bench --server redis-8.6/src/redis-server     some peers need a newer server
    python -m bench --report                                pages from the stored figures

Figures go into docs/benchmarks/. Those of a trial go into build/bench/: a trial has fewer than 5
runs, a scale below 1 or not all peers. --out names another folder.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.harness import support
from bench.harness.bench import Bench
from bench.harness.parts import ALONE, ASKED, BESIDE_PEERS, MODULES
from bench.harness.registry import PEERS
from bench.pages import report

TRIALS = support.ROOT / "build" / "bench"
FULL_RUNS = 5


def _names(allowed: tuple[str, ...]) -> object:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(
                    f"{name} is unknown: name some of {', '.join(allowed)}"
                )
        return names

    return parse


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts, peers = (*BESIDE_PEERS, *ALONE), tuple(PEERS)
    named = (*parts, *ASKED)
    parser.add_argument(
        "--only", type=_names(named), default=list(parts), help=f"parts: {', '.join(named)}"
    )
    parser.add_argument(
        "--peers", type=_names(peers), default=list(peers), help=f"peers: {', '.join(peers)}"
    )
    parser.add_argument(
        "--runs", type=int, default=FULL_RUNS, help="number of runs of each repeated workload"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the amount of work")
    parser.add_argument(
        "--server", type=Path, help="server program; without it the newest on this machine"
    )
    parser.add_argument("--out", type=Path, help="folder for figures and pages")
    parser.add_argument(
        "--report",
        action="store_true",
        help="write pages and plots from the stored figures, measure nothing",
    )
    given = parser.parse_args()
    if given.server:
        os.environ[support.SERVER] = str(given.server)  # the scripts of Fairlane alone read it, too
        try:
            support.program()
        except support.UnfitServer as reason:
            parser.error(str(reason))
    is_full = given.runs >= FULL_RUNS and given.scale >= 1 and len(given.peers) == len(PEERS)
    given.out = given.out or (support.PUBLISHED if is_full else TRIALS)
    return given


def _measure(name: str, bench: Bench, out: Path) -> None:
    workload = importlib.import_module(MODULES[name])
    began = time.monotonic()
    with support.server() as url:
        bench.url = url
        rows = workload.measure(bench)
    seconds = time.monotonic() - began
    report.keep(out, name, rows, bench, seconds)
    print(report.table(report.read(out, [name])[name]))
    print(f"{name}: {seconds:.0f} s", file=sys.stderr)


def _alone(name: str, given: argparse.Namespace) -> None:
    """Runs a measurement of Fairlane alone, at the scale of this session."""
    sizes = {
        "throughput": [str(given.runs), str(int(200_000 * given.scale) // 1000 * 1000)],
        "tasks": [str(given.runs), str(int(100_000 * given.scale) // 1000 * 1000)],
        "executor": [str(given.runs), str(max(1, int(100 * given.scale)))],
        "flows": [str(given.runs), str(max(1_000, int(20_000 * given.scale)))],
        "urgent": [str(int(200_000 * given.scale)), "30"],
        "memory": [str(int(2_000_000 * given.scale))],
        "recovery": [str(max(10, int(size * given.scale))) for size in (100, 10_000, 100_000)],
        "fanout": [str(given.runs), str(int(40_000 * given.scale) // 1000 * 1000)],
        "http_api": [str(given.runs), str(max(200, int(2_000 * given.scale)))],
        "tenants": [str(max(10, int(30 * given.scale)))],
        "dashboard": [],
        "cancel": [str(int(1_000_000 * given.scale)), str(given.runs)],
        "limits": [str(given.runs)],
        "keys": [str(max(1_000, int(20_000 * given.scale)))],
        "ageing": [str(max(10, int(60 * given.scale)))],
        "rates": ["--seconds", str(max(10, int(600 * given.scale)))],
        "schedules": ["1000", str(max(20, int(60 * given.scale))), "10"],
        "primaries": [str(given.runs), str(int(40_000 * given.scale) // 1000 * 1000), "60"],
    }
    environment = {**os.environ, "FAIRLANE_BENCH_OUT": str(given.out)}
    command = [sys.executable, "-m", MODULES[name], *sizes[name]]
    subprocess.run(command, check=True, env=environment)


def main() -> None:
    given = _arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    if not given.report:
        peers = [PEERS[name] for name in PEERS if name in given.peers]
        bench = Bench(peers, given.runs, given.scale)
        wanted = [name for name in (*BESIDE_PEERS, *ASKED) if name in given.only]
        if wanted:
            bench.prepare()
        for name in wanted:
            _measure(name, bench, given.out)
        for name in ALONE:
            if name in given.only:
                _alone(name, given)
    print(report.write(given.out, (*BESIDE_PEERS, *ASKED), ALONE))


if __name__ == "__main__":
    try:
        main()
    except support.UnfitServer as reason:
        sys.exit(f"bench: {reason}")
