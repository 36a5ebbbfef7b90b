"""Tests limits by key in a cluster, while whole workers and their processes are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fairlane.operations import limit_keys
from tests.support.processes.workers import check_settled_once, children_of
from tests.support.servers import backends
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers

ON_CLUSTER = pytest.mark.parametrize(
    "redis_server", [one for one in backends.chosen() if one == "cluster1"], indirect=True
)
LIMITS = {"x": 1, "y": 2, "z": 3}
KILLS = 6


@ON_CLUSTER
@pytest.mark.slow
def test_no_key_exceeds_its_limit_while_workers_are_killed(
    queue: Queue, workers: Workers, folder: Folder
):
    """By the handlers' own clock; a handler that is killed runs until then at most."""
    draw, named = random.Random(3), dict[str, dict[str, int]]()
    for n in range(120):
        chosen = draw.sample(sorted(LIMITS), draw.randint(1, 2))
        named[f"r{n}"] = {name: LIMITS[name] for name in chosen}
        queue.submit_request(
            ["a"] * draw.randint(1, 2), id=f"r{n}", limits=named[f"r{n}"], limit=2,
            priority=draw.randrange(3), lease=2, attempts=9, backoff=0,
        )  # fmt: skip
    running = [workers.start("note_key_interval", processes=2) for _ in range(3)]
    killed = list[tuple[int, int]]()  # pid, ns
    for number in range(KILLS):
        folder.wait_noted("ended", 15 * (number + 1))
        if number % 2:
            victim = running.pop(0)
            pids = children_of(victim.pid)
            victim.send(signal.SIGKILL)
            running.append(workers.start("note_key_interval", processes=2))
        else:
            pids = children_of(running[-1].pid)[:1]
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended with its worker
                os.kill(pid, signal.SIGKILL)
        killed += [(pid, time.monotonic_ns()) for pid in pids]
    for name in named:
        assert queue.request(name).wait(timeout=PATIENCE_S) == "done"
        check_settled_once(queue.request(name))
    _check_intervals(folder, named, dict(killed))
    wait_until(lambda: queue.driver.run(limit_keys.names_in_use("req")) == [], PATIENCE_S)
    wait_until(lambda: len(queue.workers().workers) == len(running), PATIENCE_S)


def _check_intervals(
    folder: Folder, named: dict[str, dict[str, int]], killed: dict[int, int]
) -> None:
    ends = {run: int(ns) for run, ns in folder.noted("ended")}
    edges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for run, request_id, pid, ns in folder.noted("began"):
        end = ends.get(run, killed.get(int(pid)))
        assert end is not None
        for name in named[request_id]:
            edges[name] += [(int(ns), 1), (end, -1)]
    for name, limit in LIMITS.items():
        count = most = 0
        for _, step in sorted(edges[name]):
            count += step
            most = max(most, count)
        assert most <= limit, name
