"""Tests how the supervisor relieves a unit whose call is slow, while Redis comes and goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import FairlaneError, RedisFull, RedisUnreachable
from fairlane.protocol.steps import Batch, Call, SingleServer
from fairlane.worker.board import LeaseBoard, LeaseRecord
from fairlane.worker.lease_keeper import LeaseKeeper
from fairlane.worker.limits import StalledLeases
from tests.worker.parts import OP

if TYPE_CHECKING:
    from fairlane.protocol.steps import Command, Operation

AWAY = RedisUnreachable("Redis at h:1 does not answer")
FULL = RedisFull("Redis has no room")
SETTLED = [b"already", []]  # a reply after which nothing is dispatched


class Server:
    """A driver whose Redis fails with `error` while there is one; records what reached it."""

    url = "redis://127.0.0.1:1"

    def __init__(self) -> None:
        self.error: FairlaneError | None = None
        self.tried = 0
        self.exchanges = 0
        self.calls: list[list[Any]] = []  # the arguments of each, from keep on

    def run(self, operation: Operation[Any]) -> Any:
        """Returns the operation's result."""
        try:
            step: Any = operation.send(None)
            self.tried += 1
            if self.error is AWAY:
                raise self.error
            if isinstance(step, SingleServer):
                self.exchanges += 1
                step = operation.send([[], [], [], [], []])
            assert isinstance(step, Batch), step
            operation.send([self.error or self._settle(call) for call in step.steps])
        except StopIteration as end:
            return end.value
        raise AssertionError("one step is expected")

    def _settle(self, call: Command | Call[Any]) -> list[Any]:
        assert isinstance(call, Call)
        assert call.script.name == "complete"
        self.calls.append([*call.args][4:])
        return SETTLED


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def board() -> LeaseBoard:
    return LeaseBoard(1, 1)


@pytest.fixture
def stalled(server: Server, board: LeaseBoard) -> StalledLeases:
    driver: Any = server
    return StalledLeases(board, LeaseKeeper(driver, "req", "w:1", "7", board))


def begin_slow_call(board: LeaseBoard) -> None:
    """Makes the unit begin the second of three sub-requests, while another lease waits."""
    own, spare = board.records
    own.hold("r1", "0", 7, OP, 100.0, 30.0, -3)
    spare.hold("r2", "0", 7, OP, 100.0, 30.0, shared=True)
    own.take_turn()
    own.begin_batch()
    assert own.journal is not None
    own.journal.begin()
    own.journal.lease(own.unit, own.version, b"7-0 7-1 7-2")
    own.journal.result(b"0:d:1:0:5 3\n", b"one")


SPLIT = [b"1", b"1", b"7-0", b"0:d:1:0:5", b"one", b"7-2", "unbegun", "0", b"", ""]
GIVEN_BACK = [b"u", b"0"]


def test_a_batch_is_relieved_once(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float]
):
    """Of a slice the result goes to Redis, and what has not begun goes back; so does a lease."""
    begin_slow_call(board)
    assert not stalled.is_due
    for _ in range(20):
        now[0] += 0.05
        stalled.look()
    assert server.calls == [GIVEN_BACK, SPLIT]
    assert not stalled.is_due


def test_a_lease_that_went_back_is_not_held_any_more(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float]
):
    """Its unit cannot note that before the slow call ends; `fairlane workers` counts it no more."""
    begin_slow_call(board)
    spare = board.records[1]
    server.error = FULL
    for _ in range(2):
        now[0] += 0.05
        stalled.look()
    assert len(board.held()) == 2
    server.error = None
    now[0] += 1.5
    stalled.look()
    assert [held.request_id for held in board.held()] == ["r1"]
    assert (spare.is_holding, spare.take_turn()) == (True, False)
    spare.hold("r3", "0", 9, OP, 101.0, 30.0)
    assert len(board.held()) == 2


def test_the_next_process_holds_nothing_of_what_went_back_before_a_death(
    stalled: StalledLeases, board: LeaseBoard, now: list[float]
):
    """Otherwise its end at a drain would be taken for a crash."""
    begin_slow_call(board)
    for _ in range(2):
        now[0] += 0.05
        stalled.look()
    assert [record.is_holding for record in board.records] == [True, True]
    board.clear_batch(0)
    assert [record.is_holding for record in board.records] == [False, False]


def test_a_split_lease_names_the_sub_request_that_it_has_left(
    stalled: StalledLeases, board: LeaseBoard, now: list[float]
):
    """So a crash names it. The next lease of the record has its own."""
    begin_slow_call(board)
    own = board.records[0]
    assert (what(own), what(own, "count")) == ("sub-requests of request r1", 3)
    for _ in range(2):
        now[0] += 0.05
        stalled.look()
    assert (what(own), what(own, "count")) == ("sub-request 1 of request r1", 1)
    own.hold("r1", "0", 8, OP, 101.0, 30.0, -3)
    assert what(own) == "sub-requests of request r1"


def what(record: LeaseRecord, name: str = "what") -> Any:
    held = record.held()
    assert held is not None
    return getattr(held, name)


def test_a_lease_that_began_after_the_mark_keeps_what_it_has(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float]
):
    """While the supervisor waited for Redis, the call ended, and the unit began another batch."""
    begin_slow_call(board)
    now[0] += 0.05
    (began,) = board.long_batches(now[0]).values()
    stalled.look()
    for record in board.records:
        record.release()
    begin_slow_call(board)
    board.batches[0] = began
    now[0] += 0.05
    stalled.look()
    assert server.calls == [[b"1", b"1", b"7-0", b"0:d:1:0:5", b"one"]]


@pytest.mark.parametrize("error", [AWAY, FULL])
def test_a_batch_is_relieved_when_redis_is_back(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float], error: Any
):
    """Redis is away, or has no room, when the call becomes slow. It is tried once a second."""
    begin_slow_call(board)
    server.error = error
    for _ in range(100):  # 10 s
        now[0] += 0.1
        if stalled.is_due:
            stalled.look()
    assert server.tried in range(18, 23), "two calls each second"
    assert server.calls == []
    server.error = None
    now[0] += 1.0
    assert stalled.is_due
    stalled.look()
    assert server.calls == [GIVEN_BACK, SPLIT]
    now[0] += 10.0
    assert not stalled.is_due


def test_an_exchange_whose_reply_is_not_read_is_repeated_until_it_is_answered(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float]
):
    """The event loop is blocked, so the unit may hold leases that are not on the board."""
    begin_slow_call(board)
    own = board.records[0]
    own.begin_exchange(OP)
    server.error = AWAY
    for _ in range(3):
        now[0] += 0.1
        stalled.look()
    assert own.is_revoked(OP)
    assert server.exchanges == 0
    server.error = None
    for _ in range(10):
        now[0] += 1.0
        stalled.look()
    assert server.exchanges == 1


def test_a_lease_that_waits_for_long_is_given_back_when_redis_is_back(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float]
):
    """No batch of its unit is slow; another unit of its process keeps the interpreter lock."""
    board.records[1].hold("r2", "0", 7, OP, now[0], 30.0, shared=True)
    server.error = AWAY
    for _ in range(3):
        now[0] += 1.0
        stalled.look_at_waiting()
    server.error = None
    for _ in range(3):
        now[0] += 1.0
        stalled.look_at_waiting()
    assert server.calls == [GIVEN_BACK]


def test_the_next_slow_batch_does_not_wait_for_the_last_one(
    stalled: StalledLeases, server: Server, board: LeaseBoard, now: list[float]
):
    """The call ended while Redis was away."""
    begin_slow_call(board)
    server.error = AWAY
    for _ in range(2):
        now[0] += 0.1
        stalled.look()
    for record in board.records:
        record.release()
    board.records[0].end_batch()
    server.error = None
    now[0] += 1.0
    begin_slow_call(board)
    for _ in range(2):
        now[0] += 0.05
        stalled.look()
    assert server.calls == [GIVEN_BACK, SPLIT]
