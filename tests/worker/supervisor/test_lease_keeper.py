"""Tests how a supervisor extends leases: in few round trips, and none fails because of another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError, NodeAway, RedisUnfit, RedisUnreachable
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call
from fairlane.queue import Queue
from fairlane.worker.board import LeaseBoard
from fairlane.worker.lease_keeper import LeaseKeeper
from tests.support.scripts.requests import take_slice
from tests.worker.parts import OP

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Operation


class Counting:
    """A driver that records each round trip, and answers each call or raises."""

    url = "redis://127.0.0.1:1"

    def __init__(self, answer: Callable[[str], Any] = lambda _: [b"ok"]) -> None:
        self.answer = answer
        self.trips: list[list[str]] = []

    def run(self, operation: Operation[Any]) -> Any:
        """Returns the operation's result."""
        step: Any = operation.send(None)
        assert isinstance(step, Batch)
        assert step.lenient
        assert step.again_s <= 1.0, "a lease cannot wait until a node is tried again"
        ids = [self._id(call) for call in step.steps]
        self.trips.append(ids)
        replies = [self._reply(one) for one in ids]
        if all(isinstance(reply, RedisUnreachable) for reply in replies):
            raise replies[0]
        try:
            operation.send(replies)
        except StopIteration as end:
            return end.value
        raise AssertionError("one step is expected")

    def _reply(self, request_id: str) -> Any:
        try:
            return self.answer(request_id)
        except FairlaneError as error:
            return error

    def _id(self, call: Any) -> str:
        assert isinstance(call, Call)
        assert call.script.name == "extend"
        return str(call.keys[2].decode()[5:-1])


def extend_all(driver: Any, ids: list[str], now: list[float], at: float = 111.0) -> list[float]:
    """Holds a lease of each, lets the keeper extend at that time; returns when each ends then."""
    now[0] = 100.0
    board = LeaseBoard(len(ids))
    keeper = LeaseKeeper(driver, "req", "w:1", "7", board)
    for record, request_id in zip(board.records, ids, strict=True):
        record.hold(request_id, "0", 7, OP, 100.0, 30.0)
    now[0] = at
    keeper._extend(board.held())
    return [held.deadline for held in board.held()]


def test_all_leases_are_extended_in_one_round_trip(now: list[float]):
    """A slow Redis delays the heartbeat once, and not for each."""
    driver = Counting()
    assert extend_all(driver, ["a1", "b1", "a2", "b2", "a3"], now) == [141.0] * 5
    assert driver.trips == [["a1", "b1", "a2", "b2", "a3"]]


def test_nothing_is_sent_before_a_third_of_the_lease_is_used_up(now: list[float]):
    """Not even an empty round trip is made."""
    driver = Counting()
    assert extend_all(driver, ["a1", "a2"], now, 109.9) == [130.0] * 2
    assert driver.trips == []


def test_a_round_trip_is_bounded(now: list[float], monkeypatch: pytest.MonkeyPatch):
    """A thousand units are not one call."""
    monkeypatch.setattr("fairlane.worker.lease_keeper.AT_MOST", 2)
    driver = Counting()
    assert extend_all(driver, ["a1", "a2", "a3"], now) == [141.0] * 3
    assert driver.trips == [["a1", "a2"], ["a3"]]


def test_when_no_node_answers_the_others_are_not_extended(
    now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """They would wait as long, and the heartbeat with them; none counts as extended."""

    def answer(_: str) -> Any:
        raise RedisUnreachable("Redis at h:1 does not answer")

    monkeypatch.setattr("fairlane.worker.lease_keeper.AT_MOST", 2)
    driver = Counting(answer)
    assert extend_all(driver, ["a1", "a2", "a3"], now) == [130.0] * 3
    assert driver.trips == [["a1", "a2"]]
    assert [one.message for one in caplog.records] == ["Redis at h:1 does not answer; trying again"]


def test_a_node_that_is_away_costs_only_its_own_leases(
    now: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A round trip may be all of that node; the others follow, and it is logged once."""

    def answer(request_id: str) -> Any:
        if request_id.startswith("a"):
            raise NodeAway("Redis at h:1 has not answered")
        return [b"ok"]

    monkeypatch.setattr("fairlane.worker.lease_keeper.AT_MOST", 2)
    driver = Counting(answer)
    assert extend_all(driver, ["a1", "a2", "a3", "b1"], now) == [130.0, 130.0, 130.0, 141.0]
    assert driver.trips == [["a1", "a2"], ["a3", "b1"]]
    assert [one.message for one in caplog.records] == [
        "could not extend a lease of request a1 and 1 more: Redis at h:1 has not answered"
    ]


@pytest.mark.parametrize("error", [RedisUnfit("WRONGTYPE"), RedisUnreachable("TRYAGAIN")])
def test_a_request_that_cannot_be_extended_costs_no_other_its_lease(
    now: list[float], caplog: pytest.LogCaptureFixture, error: Exception
):
    """Its key may hold something else, or its slot may be moving."""

    def answer(request_id: str) -> Any:
        if request_id == "a2":
            raise error
        return [b"ok"]

    driver = Counting(answer)
    assert extend_all(driver, ["a1", "a2", "a3"], now) == [141.0, 130.0, 141.0]
    assert driver.trips == [["a1", "a2", "a3"]]
    assert [one.message for one in caplog.records] == [
        "TRYAGAIN; trying again"
        if isinstance(error, RedisUnreachable)
        else f"could not extend a lease of request a2: {error}"
    ]


@pytest.mark.parametrize("is_back", [False, True])
def test_what_a_draining_worker_cannot_settle_is_reported_in_one_line(
    now: list[float], caplog: pytest.LogCaptureFixture, *, is_back: bool
):
    """Redis is unreachable: three sub-requests, two of them of one lease."""
    board = LeaseBoard(2)
    keeper = LeaseKeeper(Counting(), "req", "w:1", "7", board)  # type: ignore[arg-type]
    board.records[0].hold("a1", "0", 7, OP, 100.0, 30.0, 4, 1, 5)
    board.records[1].hold("a2", "0", 7, OP, 100.0, 30.0, -2)
    keeper.note_unsettled(is_away=True)
    for record in board.records:
        record.release()
    now[0] = 118.0
    keeper.note_unsettled(is_away=not is_back)
    keeper.report_left(is_away=True)
    line = (
        "Redis does not answer: 3 sub-requests of request a1, a2 are not settled; when the leases "
        "expire, in 12 s at the latest, another worker takes them"
    )
    assert caplog.messages == [line] * (not is_back)


def test_what_cannot_be_taken_back_in_an_outage_is_reported_in_one_line(
    now: list[float], caplog: pytest.LogCaptureFixture
):
    def run(operation: Operation[Any]) -> Any:
        operation.close()
        raise RedisUnreachable("Redis at h:1 does not answer")

    board = LeaseBoard(2)
    driver: Any = SimpleNamespace(run=run)
    keeper = LeaseKeeper(driver, "req", "w:1", "7", board)
    for record in board.records:
        record.hold("a1", "0", 7, OP, 100.0, 30.0, 4, 1, 5)
    now[0] = 101.0
    keeper.give_back(board.held())
    for _ in range(2):
        keeper.report_left()
    (line,) = caplog.messages
    assert line == (
        "Redis does not answer: 2 sub-requests of request a1 are not settled; when the leases "
        "expire, in 29 s at the latest, another worker takes them"
    )


@pytest.mark.parametrize(
    ("word", "ends", "is_stopped"),
    [(b"ok", 141.0, False), (b"cancelled", 141.0, True), (b"lost", 130.0, True)],
)
def test_each_reply_is_for_its_own_lease(
    word: bytes, ends: float, now: list[float], *, is_stopped: bool
):
    """The others of the round trip continue."""
    board = LeaseBoard(2)
    driver: Any = Counting(lambda request_id: [word if request_id == "a2" else b"ok"])
    keeper = LeaseKeeper(driver, "req", "w:1", "7", board)
    for record, request_id in zip(board.records, ("a1", "a2"), strict=True):
        record.hold(request_id, "0", 7, OP, 100.0, 30.0)
    now[0] = 111.0
    keeper._extend(board.held())
    assert [held.deadline for held in board.held()] == [141.0, ends]
    assert [record.is_stopped for record in board.records] == [False, is_stopped]


def test_the_leases_of_many_requests_are_extended_on_every_kind_of_server(
    driver: SyncDriver, redis_client: Any
):
    """In a cluster, too, where they are in many slots."""
    board, made = LeaseBoard(20), Queue(driver)
    for i, record in enumerate(board.records):
        made.submit_request([b"x"], id=f"r{i}", lease=3600)
        taken = take_slice(driver)
        assert taken is not None
        record.hold(taken.request_id, taken.k, int(taken.fence), taken.op, 100.0, 30.0)
        redis_client.zadd(keys.leases(f"r{i}"), {taken.k: 1})
    LeaseKeeper(driver, "req", "w:1", "7", board)._extend(board.held())
    for i, held in enumerate(board.held()):
        ((_, score),) = redis_client.zrange(keys.leases(f"r{i}"), 0, -1, withscores=True)
        assert score > 1
        assert held.deadline > 130.0
