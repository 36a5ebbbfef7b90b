"""Tests a process that dies between an acquire and its reply: the granted lease is released."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import NodeAway, RedisUnfit, RedisUnreachable
from fairlane.model import Token
from fairlane.operations import lease, tokens
from fairlane.protocol import keys, scripts
from fairlane.worker import Worker
from fairlane.worker.board import COUNTS, LeaseBoard, LeaseRecord
from fairlane.worker.child import Assignment
from fairlane.worker.lease_keeper import LeaseKeeper
from fairlane.worker.pool import ChildProcess, ProcessPool
from tests.support.processes.workers import Folder, broken, check_settled_once
from tests.support.scripts.requests import once, pop_token
from tests.worker.parts import ON_SINGLE, OP, record_of_its_own

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from fairlane.queue import Queue

UNITS = 4
STARTED = "7"

# ------------------------------------------------------------------ on the board


def test_an_acquire_is_on_the_board_until_it_is_answered():
    """The board has its token and its op, which a repeat of the acquire needs."""
    record = record_of_its_own()
    before = record.pending_acquire()
    record.begin_acquire(Token("r1", "2", "17"), OP)
    assert (before, record.pending_acquire()) == (None, (b"r1#2.17", OP))
    record.begin_acquire(Token("a", "0", "1"), OP)
    assert record.pending_acquire() == (b"a#0.1", OP)
    record.end_acquire()
    assert record.pending_acquire() is None


def test_the_longest_acquire_fits():
    """128 characters of id, the highest permit and generation fit; no neighbour is changed."""
    board = LeaseBoard(3)
    for record in board.records:
        record.hold("i" * 128, "9999", 2**64 - 1, OP, 1.0, 86_400.0)
        record.count(**dict.fromkeys(COUNTS, 5))
        record.begin_acquire(Token("i" * 128, "9999", str(2**64 - 1)), OP)
    longest = (b"%b#9999.%d" % (b"i" * 128, 2**64 - 1), OP)
    for record in board.records:
        assert record.pending_acquire() == longest
    for record in board.records:
        record.end_acquire(is_abandoned=True)
        record.begin_acquire(Token("a", "0", "1"), OP)
    for record in board.records:
        assert (record.pending_acquire(), record.abandoned_acquire()) == ((b"a#0.1", OP), longest)
    assert len(board.held()) == 3
    assert board.counts() == dict.fromkeys(COUNTS, 15)


def test_the_first_acquire_that_is_given_up_is_left_until_it_is_answered():
    """The supervisor reads it meanwhile, so nothing is written over it."""
    board = LeaseBoard(2)
    record = board.records[1]
    for name in ("r1", "r2"):
        record.begin_acquire(Token(name, "2", "17"), OP)
        record.end_acquire(is_abandoned=True)
    assert (record.abandoned_acquire(), board.abandoned()) == ((b"r1#2.17", OP), [record])
    record.forget_abandoned()
    assert (record.abandoned_acquire(), board.abandoned()) == (None, [])


@pytest.mark.parametrize("name", ["é" * 2000, "r1#0.3\0"], ids=["long", "NUL"])
def test_a_token_that_cannot_be_ours_is_not_noted(name: str):
    """Another program put it in a lane, and it must not overwrite anything on the board."""
    board = LeaseBoard(2)
    board.records[0].begin_acquire(Token(name, "0", "1"), OP)
    assert [record.pending_acquire() for record in board.records] == [None, None]
    assert board.held() == []


# ------------------------------------------------------------------ acquired again


def keeper_of(queue: Queue, board: LeaseBoard) -> LeaseKeeper:
    """Makes a worker's leases."""
    return LeaseKeeper(queue.driver, "req", "w:1", STARTED, board)


def popped(queue: Queue) -> Token:
    """Pops the token with which the process died."""
    token = pop_token(queue.driver)
    assert token is not None
    return token


@pytest.mark.parametrize("reached", [True, False], ids=["executed", "never sent"])
def test_the_lease_of_an_unanswered_acquire_of_a_dead_process_is_released(
    queue: Queue, redis_client: redis.Redis, *, reached: bool
):
    """The lease returns uncharged, if it was granted; the token, if no acquire used it."""
    request = queue.submit_request([b"x"], limit=1, lease=30)
    board = LeaseBoard(1)
    keeper, token, op = keeper_of(queue, board), popped(queue), lease.new_op()
    board.records[0].begin_acquire(token, op)
    if reached:
        queue.driver.run(lease.acquire(token, "w:1", STARTED, 5, op=op))
        assert redis_client.zcard(keys.leases(request.id)) == 1
    keeper.unanswered.put_back(board.records)
    assert board.records[0].pending_acquire() is None
    assert redis_client.zcard(keys.leases(request.id)) == 0
    assert broken(queue, request.id) == []
    late, _ = queue.driver.run(lease.acquire(token, "w:1", STARTED, 5, op=op))
    assert late.is_stale, "a call of the dead that arrives now takes nothing"
    _, taken = queue.driver.run(lease.acquire(popped(queue), "w:2", "1", 5))
    assert taken is not None
    assert taken.attempt == 1
    queue.driver.run(_ended(taken))


def _ended(taken: Any) -> Any:
    """Marks all of a slice as done."""
    ids = [entry_id for entry_id, _ in taken.entries]
    reply = yield lease.complete(taken, ids, [b"0:d:1:0:0", b""] * len(ids), [], keep=False)
    yield tokens.retire("req", taken.request_id, reply[1])


def test_the_tokens_of_a_lost_reply_are_dispatched(queue: Queue, redis_client: redis.Redis):
    """Two more permits of the request wait for them."""
    request = queue.submit_request([b"x"] * 9, limit=3)
    board = LeaseBoard(3)
    keeper = keeper_of(queue, board)
    for record in board.records:
        record.begin_acquire(popped(queue), lease.new_op())
    assert redis_client.llen(keys.lanes("req")[5]) == 0
    keeper.unanswered.put_back(board.records)
    assert redis_client.llen(keys.lanes("req")[5]) == 3
    assert broken(queue, request.id) == []
    assert request.cancel()


def test_a_token_of_an_ended_request_is_put_back_as_its_ending(
    queue: Queue, redis_client: redis.Redis
):
    """The end may not be logged yet."""
    request = queue.submit_request([b"x"], limit=1)
    board, token = LeaseBoard(1), popped(queue)
    queue.driver.run(once(scripts.cancel(keys.request_keys(request.id), reason="")))
    assert redis_client.zcard(keys.active("req")) == 1
    board.records[0].begin_acquire(token, lease.new_op())
    keeper_of(queue, board).unanswered.put_back(board.records)
    assert redis_client.zcard(keys.active("req")) == 0


class Deaf:
    """A driver whose every run fails."""

    url = "redis://127.0.0.1:1"

    def __init__(self, error: Exception) -> None:
        self.error, self.runs = error, 0

    def run(self, operation: Any) -> Any:
        operation.close()
        self.runs += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "runs"),
    [(RedisUnreachable("no answer"), 1), (NodeAway("away"), 3), (RedisUnfit("WRONGTYPE"), 3)],
)
def test_what_cannot_be_put_back_is_left_to_the_leader(
    error: Exception, runs: int, caplog: pytest.LogCaptureFixture
):
    """They are not sent one by one if no server answers; a new process finds its records empty."""
    board, driver = LeaseBoard(3), Deaf(error)
    for record in board.records:
        record.begin_acquire(Token("r1", "0", "3"), OP)
    LeaseKeeper(driver, "req", "w:1", STARTED, board).unanswered.put_back(board.records)  # type: ignore[arg-type]
    assert driver.runs == runs
    assert [record.pending_acquire() for record in board.records] == [None] * 3
    assert {one.message for one in caplog.records} == {
        f"could not put back a token of request r1: {error}"
    }


# ------------------------------------------------------------------ abandoned acquires


@pytest.mark.parametrize("executed", ["before", "after", "never"])
def test_what_was_granted_to_a_call_that_was_given_up_goes_back(
    queue: Queue, redis_client: redis.Redis, executed: str
):
    """The hung node continues: its permits must not be idle until the lease expires."""
    request = queue.submit_request([b"x"], limit=1, lease=30)
    board = LeaseBoard(1)
    keeper, token, op = keeper_of(queue, board), popped(queue), lease.new_op()
    record = board.records[0]
    record.begin_acquire(token, op)
    record.end_acquire(is_abandoned=True)
    late = partial(lease.acquire, token, "w:1", STARTED, 5, op=op)
    if executed == "before":
        queue.driver.run(late())
        assert redis_client.zcard(keys.leases(request.id)) == 1
    keeper.unanswered.take_granted_late()
    if executed == "after":
        assert queue.driver.run(late())[0].is_stale
    assert record.abandoned_acquire() is None
    assert redis_client.zcard(keys.leases(request.id)) == 0
    assert broken(queue, request.id) == []
    put_off, _ = queue.driver.run(lease.acquire(token, "w:2", "1", 5))
    assert put_off.is_stale, "the token that comes back from `delayed` does no harm"
    _, taken = queue.driver.run(lease.acquire(popped(queue), "w:2", "1", 5))
    assert taken is not None
    assert taken.attempt == 1
    queue.driver.run(_ended(taken))


def test_tokens_of_requests_that_ended_or_are_gone_are_not_repeated(queue: Queue):
    """Another worker holds the permit, or the request is over: the record is free then."""
    request = queue.submit_request([b"x"], limit=1)
    board = LeaseBoard(3)
    keeper, token = keeper_of(queue, board), popped(queue)
    for record, name in zip(board.records, (request.id, request.id, "r.gone"), strict=True):
        record.begin_acquire(Token(name, token.k, token.g), lease.new_op())
        record.end_acquire(is_abandoned=True)
    request.cancel()
    keeper.unanswered.take_granted_late()
    assert board.abandoned() == []


@pytest.mark.parametrize(
    ("error", "stays"),
    [(RedisUnreachable("no answer"), True), (NodeAway("away"), True), (RedisUnfit("bad"), False)],
)
def test_an_acquire_that_was_given_up_is_repeated_until_it_is_answered(
    error: Exception, now: list[float], *, stays: bool
):
    """It does so once a second at most."""
    board, driver = LeaseBoard(1), Deaf(error)
    board.records[0].begin_acquire(Token("r1", "0", "3"), OP)
    board.records[0].end_acquire(is_abandoned=True)
    keeper = LeaseKeeper(driver, "req", "w:1", STARTED, board)  # type: ignore[arg-type]
    for _ in range(3):
        keeper.unanswered.take_granted_late()
    assert driver.runs == 1
    now[0] += 1.0
    keeper.unanswered.take_granted_late()
    assert driver.runs == 1 + stays
    assert bool(board.abandoned()) is stays


# ------------------------------------------------------------------ processes that die


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and its handlers share."""
    return Folder(tmp_path)


def echo(body: bytes) -> bytes:
    """Returns the body."""
    return body


def dying(folder: Folder, name: str) -> Callable[..., None]:
    """Returns a method in which the first process dies when all processes have reached it."""
    method = getattr(LeaseRecord, name)

    def die(record: LeaseRecord, *given: Any, **named: Any) -> None:
        if not folder.noted("died"):
            folder.note("came")
            folder.wait_noted("came", UNITS)
            folder.note("died")
            os.kill(os.getpid(), signal.SIGKILL)
        method(record, *given, **named)

    return die


@ON_SINGLE
def test_leases_that_are_not_on_the_board_yet_go_back_immediately(
    queue: Queue, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    """All units have been granted theirs when the process dies; and none is charged."""
    monkeypatch.setattr(LeaseRecord, "hold", dying(folder, "hold"))
    request = queue.submit_request([b"%d" % i for i in range(UNITS)], limit=UNITS, lease=20)
    worker = Worker(queue, echo, concurrency=UNITS)
    worker.run(until_idle=True)
    assert worker._children.crashes == 1
    assert {(one.status, one.attempt) for one in request.results()} == {("done", 1)}
    check_settled_once(request)


@ON_SINGLE
def test_a_worker_that_stops_now_gives_back_what_is_not_on_the_board(
    queue: Queue, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    """Its units have just been granted leases when the supervisor fails."""

    def hang(record: LeaseRecord, *_: Any, **__: Any) -> None:
        folder.note("came")
        folder.pass_gate("never")

    def fail(worker: Worker, *, until_idle: bool) -> None:
        if len(folder.noted("came")) == UNITS:
            raise RuntimeError("broken supervisor")

    request = queue.submit_request([b"x"] * 8, limit=UNITS)
    with monkeypatch.context() as patched:
        patched.setattr(LeaseRecord, "hold", hang)
        patched.setattr(Worker, "_tick", fail)
        with pytest.raises(RuntimeError, match="broken supervisor"):
            Worker(queue, echo, concurrency=UNITS).run()
    assert (request.progress().held, request.progress().left) == (0, 8)
    assert broken(queue, request.id) == []
    Worker(queue, echo).run(until_idle=True)
    assert {one.attempt for one in request.results()} == {1}


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_process_that_drained_without_an_answer_is_looked_after(
    monkeypatch: pytest.MonkeyPatch, *, is_wanted: bool
):
    """It gave up while Redis was unreachable: no crash, but its token is put back."""
    shape: Any = None
    (record,) = LeaseBoard(1).records
    if is_wanted:
        record.begin_acquire(Token("r1", "0", "3"), OP)
    children = ProcessPool([Assignment("", "req", "w:1", "7", shape, 20.0, (record,))], [])
    children.running[7] = ChildProcess(7, 0, (record,), os.open(os.devnull, os.O_RDONLY), -1, 0.0)
    monkeypatch.setattr(os, "waitpid", lambda pid, _: (pid, 0))
    assert len(list(children.collect(restart=False))) == int(is_wanted)
    assert children.crashes == 0
