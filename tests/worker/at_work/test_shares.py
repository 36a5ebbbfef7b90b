"""Tests shares: lanes are strict, and a request's share of its lane is its limit."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from fairlane.protocol import keys
from fairlane.protocol.lua import Dialect, library
from tests.support.wait import PATIENCE_S
from tests.worker.faults.test_redis import POPS, commands_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def turns(folder: Folder) -> list[str]:
    """Returns the requests in the order in which the one unit ran their sub-requests."""
    return [name for _, _, name in folder.noted("ran")]


@pytest.mark.rest
@ON_SINGLE
def test_a_later_lane_waits_until_the_earlier_ones_are_empty(
    queue: Queue, workers: Workers, folder: Folder
):
    """The time does not matter: no request ages into another lane."""
    for name, lane in (("late", 9), ("early", 8)):
        queue.submit_request([b"x"] * 30, id=name, priority=lane, limit=2)
    workers.run("echo_noted", slice_s=0)
    assert [(name, len(list(run))) for name, run in groupby(turns(folder))] == [
        ("early", 30),
        ("late", 30),
    ]


@ON_SINGLE
def test_requests_of_one_priority_share_by_their_limits(
    queue: Queue, workers: Workers, folder: Folder
):
    """Three tokens circulate for one, and one for the other."""
    queue.submit_request([b"x"] * 60, id="wide", limit=3)
    queue.submit_request([b"x"] * 60, id="narrow", limit=1)
    workers.run("echo_noted", slice_s=0)
    together = turns(folder)[:40]
    assert together.count("narrow") in {9, 10, 11}


@pytest.mark.rest
@ON_SINGLE
def test_units_are_quiet_while_another_one_holds_the_last_sub_request(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """Nothing is ready, so no token circulates: idle units just wait."""
    request = queue.submit_request([b"x"], limit=4)
    workers.start("hold", processes=4)
    folder.wait_noted("began")
    dialect = Dialect.of(redis_client.info("server"))
    beat, acquire = (
        f"EVALSHA {script.shas[dialect].decode()} "
        for script in (library()["heartbeat"], library()["acquire"])
    )
    sent = [command for _, command in commands_until(redis_client, beat, 4)]
    assert [command for command in sent if command.startswith(acquire)] == []
    pops = [command for command in sent if command.startswith(POPS)]
    assert len(pops) <= 3 * 3, "each unit's pop blocks for two seconds"
    assert redis_client.llen(keys.lanes("req")[5]) == 0
    folder.open_gate()
    assert request.wait(timeout=PATIENCE_S) == "done"
