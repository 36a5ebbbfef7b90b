"""Tests workers at many small requests: one unit has several leases, with the same guarantees."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.common import clock
from fairlane.worker import Worker
from fairlane.worker.board import LeaseBoard
from fairlane.worker.limits import StalledLeases
from tests.support.processes.workers import Folder, check_settled_once
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE, OP

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.queue import Queue
    from fairlane.request import Request
    from fairlane.worker.board import Held
    from tests.support.processes.workers import Workers


@pytest.fixture
def own_folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and handlers of its own process share."""
    return Folder(tmp_path)


def many(queue: Queue, count: int, **options: Any) -> list[Request]:
    """Submits so many requests of one sub-request, numbered in their bodies."""
    return [queue.submit_request([b"%d" % i], id=f"one{i}", **options) for i in range(count)]


def check_each(requests: list[Request], attempts: set[int] | None = None) -> None:
    """Asserts that each has one result, which is of its own body."""
    for i, request in enumerate(requests):
        (result,) = request.results()
        assert (result.status, result.body) == ("done", b"%d" % i)
        assert result.attempt in (attempts or {1})
        check_settled_once(request)


@pytest.mark.rest
@pytest.mark.parametrize("handler", ["echo", "echo_async"])
@pytest.mark.parametrize("concurrency", [1, 2])
def test_many_requests_are_worked_off_in_bunches(
    handler: str, concurrency: int, queue: Queue, workers: Workers
):
    """Each runs once, and each end is logged once; a larger one of the same lane is among them."""
    large = queue.submit_request([b"%d" % i for i in range(3000)], limit=3)
    requests = many(queue, 400)
    workers.run(handler, concurrency=concurrency)
    check_each(requests)
    assert [result.body for result in large.results()] == [b"%d" % i for i in range(3000)]
    check_settled_once(large)
    logged = [one.id for one in queue.completions("0", follow=False)]
    assert sorted(logged) == sorted([large.id, *(request.id for request in requests)])


@pytest.mark.rest
@pytest.mark.parametrize("tokens", [1, 128])
@ON_SINGLE
def test_leases_of_one_sub_request_of_one_request(tokens: int, queue: Queue, workers: Workers):
    """With a slice time of 0 each is a lease of its own, many or one at a time."""
    request = queue.submit_request([b"%d" % i for i in range(1500)], limit=200)
    workers.run("echo", slice_s=0, tokens=tokens)
    assert [result.body for result in request.results()] == [b"%d" % i for i in range(1500)]
    check_settled_once(request)


# ------------------------------------------------------------------ deaths


@pytest.mark.rest
@pytest.mark.parametrize("attempts", [1, 3])
@ON_SINGLE
def test_a_poison_body_among_many_quick_ones_is_charged_alone(
    attempts: int, queue: Queue, own_folder: Folder
):
    """The running lease is identified: no more die of it than it has attempts."""

    def handler(body: bytes) -> bytes:
        if body == b"150":
            own_folder.note("died", os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        return body

    requests = many(queue, 300, attempts=attempts, backoff=(0.01, 0.02))
    worker = Worker(queue, handler)
    worker.run(until_idle=True)
    (dead,) = requests.pop(150).results()
    assert (dead.status, dead.attempt) == ("dead", attempts)
    assert dead.error == "the process of the handler ended by signal 9 (SIGKILL)"
    assert len(own_folder.noted("died")) == attempts
    for request in requests:
        assert [(one.status, one.attempt) for one in request.results()] == [("done", 1)]


@pytest.mark.rest
@ON_SINGLE
def test_processes_that_are_killed_at_any_time_lose_nothing(queue: Queue, own_folder: Folder):
    """Four are killed, in the middle of batches; no sub-request has two results."""

    def handler(body: bytes) -> bytes:
        if int(body) % 100 == 7 and not own_folder.noted(f"died{body.decode()}"):
            own_folder.note(f"died{body.decode()}")
            os.kill(os.getpid(), signal.SIGKILL)
        return body

    requests = many(queue, 400, backoff=(0, 0))
    Worker(queue, handler).run(until_idle=True)
    check_each(requests, {1, 2})
    assert sum(one.attempt for request in requests for one in request.results()) == 404


# ------------------------------------------------------------------ slow ones


@pytest.mark.rest
@pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["one unit", "two units"])
@ON_SINGLE
def test_nothing_waits_behind_a_handler_that_is_slow_all_of_a_sudden(
    options: dict[str, int], queue: Queue, workers: Workers, folder: Folder
):
    """Other workers run what its process had leased, at its first attempt."""
    quick = many(queue, 200)
    workers.run("hold_999")
    last = [queue.submit_request([b"%d" % i], id=f"late{i}") for i in (0, 999, *range(1, 60))]
    workers.start("hold_999", **options)
    folder.wait_noted("began")
    if not options:  # else the process has another unit
        workers.start("hold_999")
    others = [request for request in last if request.id != "late999"]
    for request in others:
        assert request.wait(timeout=PATIENCE_S) == "done"
        assert [one.attempt for one in request.results()] == [1]
    assert last[1].progress().held == 1
    folder.open_gate()
    assert last[1].wait(timeout=PATIENCE_S) == "done"
    check_each(quick)


class Kept:
    """A keeper that records what it must release, and whose calls all succeed."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.unanswered = self

    def give_back(self, held: list[Held], *, is_dead: bool) -> list[Held]:
        assert not is_dead  # a living process releases its records itself
        self.given += [one.request_id for one in held]
        return []

    def settle(self, held: list[Held], calls: list[object]) -> list[Held]:
        assert not held
        assert not calls
        return []

    def take_back_unread(self, _record: object) -> bool:
        return True


def test_the_supervisor_gives_back_what_waits_for_long(monkeypatch: pytest.MonkeyPatch):
    """It announces this first, and does it at its next check, if the lease has not begun."""
    now = [100.0]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])
    board, keeper = LeaseBoard(1, 3), Kept()
    behind = StalledLeases(board, keeper)  # type: ignore[arg-type]
    for i, record in enumerate(board.records):
        record.hold(f"r{i}", "0", 7, OP, 100.0, 30.0, shared=i < 3)
    assert board.records[0].take_turn()
    for moment in (100.0, 100.2, 100.4):
        now[0] = moment
        behind.look_at_waiting()
        assert keeper.given == []
    assert not board.records[1].take_turn(), "it was stopped"
    for _ in range(3):
        behind.look_at_waiting()
        assert keeper.given == ["r2"]
    assert board.records[2].is_holding


def test_what_waits_behind_long_slices_is_left_alone_for_longer(monkeypatch: pytest.MonkeyPatch):
    """A batch takes about a slice: what waits for a part of it is not released."""
    now = [100.0]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])
    board, keeper = LeaseBoard(1, 1), Kept()
    behind = StalledLeases(board, keeper, slice_ms=500)  # type: ignore[arg-type]
    board.records[1].hold("r1", "0", 7, OP, 100.0, 30.0, shared=True)
    board.records[0].begin_batch()
    for moment, given in ((100.9, []), (100.9, []), (101.1, []), (101.1, ["r1"])):
        now[0] = moment
        behind.look()
        assert keeper.given == given


def test_a_lease_that_begins_before_the_mark_is_not_given_back(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])
    board, keeper = LeaseBoard(1, 1), Kept()
    behind = StalledLeases(board, keeper)  # type: ignore[arg-type]
    board.records[1].hold("r1", "0", 7, OP, 100.0, 30.0, shared=True)
    board.records[0].begin_batch()
    assert board.records[1].take_turn()
    now[0] = 100.1
    for _ in range(3):
        behind.look()
    assert keeper.given == []
    assert not behind.is_due


def test_a_supervisor_sleeps_while_no_batch_runs_and_is_woken_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
):
    now = [100.0]
    monkeypatch.setattr(clock, "mono_s", lambda: now[0])
    board = LeaseBoard(2)
    pipe = board.open_pipe()
    try:
        board.records[1].begin_batch()
        assert not board.may_sleep()
        board.records[1].end_batch()
        assert not board.may_sleep(), "the next batch may begin soon"
        now[0] = 101.5
        assert board.may_sleep()
        board.records[0].begin_batch()
        assert os.read(pipe, 10) == b"w"
        assert not board.may_sleep()
    finally:
        board.close()


@pytest.mark.rest
def test_a_unit_that_is_idle_again_takes_many_tokens_in_one_call(queue: Queue, workers: Workers):
    """It does so on every kind of server: by one pop, or by two."""
    requests = many(queue, 60)
    worker = workers.start("echo")
    wait_until(lambda: all(one.progress().ended for one in requests), why="all are done")
    more = [queue.submit_request([b"%d" % i], id=f"more{i}") for i in range(60)]
    wait_until(lambda: all(one.progress().ended for one in more), why="all are done")
    assert worker.wait_health(held=0)["done"] == 120
    check_each(requests)
    check_each(more)
