"""Tests the report of a worker that ends when its queue is idle: what it waits for."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnreachable
from fairlane.operations.why import WaitingRequest, waiting
from fairlane.operations.workers import no_worker, unregister_worker
from fairlane.protocol import keys
from fairlane.worker import Worker
from fairlane.worker.board import LeaseBoard
from fairlane.worker.supervisor import IdleReport
from tests.support.processes.beats import STARTED, beat
from tests.support.scripts.requests import change_number, take_slice
from tests.support.wait import wait_until
from tests.worker.handlers import echo
from tests.worker.parts import ON_SINGLE, OP

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue

PAUSED = WaitingRequest("pz", "paused", "paused: fairlane resume pz")
RETRY = WaitingRequest("r1", "retry", "next retry in 40 s", 41_000)

# ------------------------------------------------------------------ what is read


def found(queue: Queue) -> dict[str, str]:
    """Returns why each unfinished request waits."""
    rows, _ = queue.driver.run(waiting("req"))
    return {one.request_id: one.why for one in rows}


def test_each_cause_is_reported(queue: Queue, driver: SyncDriver, redis_client: redis.Redis):
    """The request's own state decides; ended and abandoned ones are left out."""
    paused = queue.submit_request([b"x"], id="pz")
    paused.pause()
    held = queue.submit_request([b"x"], id="held", limit=1, priority=1)
    cancelling = queue.submit_request([b"x", b"y"], id="going", limit=1, priority=0)
    assert [taken and taken.request_id for taken in (take_slice(driver), take_slice(driver))] == [
        "going",
        "held",
    ]
    cancelling.cancel()
    fresh = queue.submit_request([b"x"], id="fresh")
    late = queue.submit_request([b"x"], id="late")
    change_number(redis_client, "late", "fresh", 0)
    seconds: Any = redis_client.time()
    retries = keys.request_keys("late")[5]
    redis_client.zadd(retries, {"1-0": (seconds[0] + 40) * 1000})
    open_one = queue.submit_request([b"x"], id="open")
    change_number(redis_client, "open", "fresh", 0)
    change_number(redis_client, "open", "open", 1)
    redis_client.zadd(keys.active("req"), {"absent": 1})
    reported = found(queue)
    assert re.fullmatch(
        r"the sub-request that waits is to be tried again at [0-9:]{8} UTC \(in (39|40) s\)",
        reported.pop("late"),
    )
    assert reported == {
        "pz": "paused: fairlane resume pz",
        "held": "1 of 1 permit is held by w:1",
        "going": "cancelling: 1 of 1 permit is held by w:1",
        "open": "open: its producer is still sending, or gone",
        "fresh": no_worker("req"),
    }
    beat(queue, "w:1")
    assert found(queue)["fresh"] == "its next token is on its way"
    queue.driver.run(unregister_worker("req", "w:1", STARTED))
    rows, more = queue.driver.run(waiting("req", 2))
    assert (len(rows) <= 2, more) == (True, 5)
    for request in (paused, held, cancelling, fresh, late, open_one):
        redis_client.delete(*keys.request_keys(request.id))
    redis_client.delete(keys.active("req"))


# ------------------------------------------------------------------ what is logged


class Answering:
    """A driver with the replies of the test, which records when it was called."""

    def __init__(self, now: list[float]) -> None:
        self.now, self.asked = now, []  # type: ignore[var-annotated]
        self.answer: Any = ([], 0)

    def run(self, operation: Any) -> Any:
        operation.close()
        self.asked.append(self.now[0])
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    """Returns a board of two, Redis's replies, and a call that checks and returns the log."""
    caplog.set_level(logging.INFO)
    now = [100.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now[0])
    board, redis = LeaseBoard(2), Answering(now)
    patience = IdleReport(redis, "req", board)  # type: ignore[arg-type]

    def look(moment: float) -> list[str]:
        now[0] = moment
        patience.look()
        return [one.message for one in caplog.records]

    return board, redis, look


def test_what_keeps_it_waiting_is_logged_once_and_again_when_it_changes(scene: Any):
    """It does so after five seconds; the remaining seconds are no change."""
    _, redis, look = scene
    redis.answer = ([PAUSED], 0)
    assert look(104.9) == []
    said = ["nothing can start: waiting for request pz (paused: fairlane resume pz)"]
    assert look(105.0) == look(109.9) == look(110.0) == said
    redis.answer = ([PAUSED, RETRY], 7)
    said.append(
        "nothing can start: waiting for requests pz (paused: fairlane resume pz), "
        "r1 (next retry in 40 s) and 7 more"
    )
    assert look(115.0) == said
    redis.answer = ([PAUSED, RETRY._replace(why="next retry in 35 s")], 7)
    assert look(120.0) == said
    assert redis.asked == [105.0, 110.0, 115.0, 120.0]


def test_a_long_list_is_cut(scene: Any):
    """Five are named."""
    _, redis, look = scene
    redis.answer = ([PAUSED] * 20, 30)
    assert look(105.0)[0].endswith(" and 45 more")


def test_a_worker_with_leases_reads_no_causes(scene: Any):
    """Nor does a worker that settled something less than five seconds ago."""
    board, redis, look = scene
    redis.answer = ([PAUSED], 0)
    board.records[1].hold("r1", "0", 7, OP, 100.0, 30.0)
    look(112.0)
    board.records[1].release()
    look(116.9)
    board.records[0].count(slices=1)
    look(117.0)
    look(121.9)
    assert redis.asked == []
    look(122.0)
    assert redis.asked == [122.0]


@pytest.mark.parametrize("answer", [([], 0), RedisUnreachable("no answer")], ids=["none", "away"])
def test_nothing_is_logged_without_a_cause(scene: Any, answer: Any):
    """It may be about to end."""
    _, redis, look = scene
    redis.answer = answer
    assert look(105.0) == look(110.0) == []


@ON_SINGLE
def test_a_worker_logs_what_it_waits_for_and_ends_when_that_has_ended(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The request is paused, and the test resumes it when it is reported."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("fairlane.worker.supervisor._QUIET_S", 0.1)
    request = queue.submit_request([b"x"], id="pz")
    request.pause()

    def resume() -> None:
        said = "nothing can start: waiting for request pz (paused: fairlane resume pz)"
        wait_until(lambda: said in caplog.messages, why="it says so")
        request.resume()

    other = threading.Thread(target=resume)
    other.start()
    Worker(queue, echo).run(until_idle=True)
    other.join()
    assert request.progress().state == "done"
