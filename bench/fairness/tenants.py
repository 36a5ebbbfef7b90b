"""Measures how two tenants of one priority share the workers, over time.

`python -m bench.fairness.tenants [seconds]`: the tenant "many" has 500 requests and the tenant
"one" has a single one. A sub-request of "one" takes five times as long. The shares are those of
handler time, in each second. For comparison, the same requests run without tenants.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bench.fairness import at_work
from bench.harness import support

from fairlane import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.fairness.at_work import Called

REQUESTS, UNITS = 500, 8
COSTS_MS = {"many": 2.0, "one": 10.0}
SECOND_S = 30.0
SETTLING_S = 3.0  # until the costs of the first turns are known


def run(url: str, seconds: float, *, named: bool) -> list[Called]:
    """Works on the requests for so long; returns the calls, whose names are the tenants'."""
    with Queue.from_url(url) as queue:
        for tenant, ms in COSTS_MS.items():
            body, count = f"{tenant} {ms}".encode(), REQUESTS if tenant == "many" else 1
            each = int(seconds * UNITS * 1000 / ms / count) + 1
            names = {"tenant": tenant} if named else {}
            for _ in range(count):
                queue.submit_request([body] * each, limit=UNITS, **names)  # type: ignore[arg-type]
        with at_work.workers(url, concurrency=UNITS) as log:
            time.sleep(seconds)
            return log.calls()


def shares(found: list[Called]) -> Iterator[tuple[int, float]]:
    """Yields each whole second, and the share of handler time that "one" had in it."""
    begin = min(call.ended for call in found)
    spent: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(COSTS_MS, 0.0))
    for call in found:
        spent[int(call.ended - begin)][call.name] += COSTS_MS[call.name]
    for second, row in sorted(spent.items())[:-1]:
        yield second, row["one"] / sum(row.values())


def draw(curves: dict[str, list[tuple[int, float]]], out: Path) -> None:
    """Draws the share of "one" over time."""
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "fairlane"
    figure, axes = plt.subplots(figsize=(7, 3))
    for (label, curve), colour in zip(curves.items(), ("#d9480f", "#868e96"), strict=True):
        axes.plot(*zip(*curve, strict=True), label=label, color=colour, linewidth=2)
    axes.axhline(0.5, color="#868e96", linewidth=0.5, linestyle=":")
    axes.set(xlabel="seconds", ylabel="share of handler time", ylim=(0, 1))
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    """Runs both kinds, and writes the page and its plot."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECOND_S
    curves: dict[str, list[tuple[int, float]]] = {}
    rows: list[Any] = []
    for label, named in (("tenants are named", True), ("no tenant is named", False)):
        with support.server() as url:
            curves[label] = list(shares(run(url, seconds, named=named)))
        settled = [share for second, share in curves[label] if second >= SETTLING_S]
        mean = sum(settled) / len(settled)
        rows.append(f"| {label} | {mean:.1%} | {min(settled):.1%} .. {max(settled):.1%} |")
    lines = [
        (
            f'The tenant "many" has {REQUESTS} requests whose sub-requests take '
            f'{COSTS_MS["many"]:g} ms. The tenant "one" has a single one, whose sub-requests take '
            f"{COSTS_MS['one']:g} ms. All have one priority, and one worker has {UNITS} units. The "
            f'figure is the share of handler time that "one" had in each second, from second '
            f"{SETTLING_S:g} on, when the costs of the first turns are known. 50 % is fair."
        ),
        "",
        "![The share of one tenant beside 500 requests of another](tenants.svg)",
        "",
        '| | share of "one" | each second |',
        "|---|---:|---:|",
        *rows,
    ]
    support.write("tenants", "Tenants share by time", lines)
    draw(curves, support.OUT / "tenants.svg")


if __name__ == "__main__":
    main()
