"""Tests poison bodies and failing supervisors: no other sub-request is charged or left behind.

The workers of these tests run in the test's own process; their children are forked from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.protocol.steps import Batch, Call
from fairlane.worker import Worker
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Outcome, Runner
from fairlane.worker.child import Assignment
from fairlane.worker.pool import ProcessPool
from tests.support.processes.workers import Folder, broken, check_settled_once, is_alive
from tests.support.wait import PATIENCE_S
from tests.worker.handlers import echo, spend_async
from tests.worker.parts import ON_SINGLE, entries_of, slice_of, unit_of_its_own, work_off

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.queue import Queue
    from fairlane.worker import Context

UNITS = 8


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and its handlers share."""
    return Folder(tmp_path)


# ------------------------------------------------------------------ a body that kills


def poison(folder: Folder) -> Any:
    """Holds a body in all units at first; the poison then kills each process it is in."""

    def handler(body: bytes, context: Context) -> bytes:
        is_first = not folder.noted("died")
        folder.note("began", context.index)
        if is_first:
            folder.wait_noted("began", UNITS)
        if body == b"poison":
            folder.note("died", context.attempt, os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first:
            folder.pass_gate("never")
        return body

    return handler


def poison_async(folder: Folder) -> Any:
    """Does the same as a coroutine."""

    async def handler(body: bytes, context: Context) -> bytes:
        is_first = not folder.noted("died")
        folder.note("began", context.index)
        while is_first and len(folder.noted("began")) < UNITS:
            await spend_async(0.005)
        if body == b"poison":
            folder.note("died", context.attempt, os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        while is_first:
            await spend_async(0.005)
        return body

    return handler


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@ON_SINGLE
def test_a_death_before_the_handler_is_called_is_not_charged(
    queue: Queue, folder: Folder, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
):
    """So a sub-request of one attempt is not dead without having run."""
    name = "run_async" if is_async else "run"
    run = getattr(Runner, name)

    def die_once(runner: Runner, leases: Any) -> Any:
        if not folder.noted("died"):
            folder.note("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return run(runner, leases)

    async def handler(body: bytes) -> bytes:
        return body

    monkeypatch.setattr(Runner, name, die_once)
    request = queue.submit_request([b"x"], attempts=1)
    Worker(queue, handler if is_async else echo).run(until_idle=True)
    assert [(result.status, result.attempt) for result in request.results()] == [("done", 1)]
    check_settled_once(request)


@pytest.mark.parametrize("made", [poison, poison_async])
@pytest.mark.parametrize("attempts", [1, 3])
@ON_SINGLE
def test_one_poison_body_is_charged_alone(made: Any, attempts: int, queue: Queue, folder: Folder):
    """Eight are leased at its first kill: any may be the cause, and none is charged.

    Then one unit works alone, so that the poison is charged with each further death.
    """
    bodies = [b"%d" % i for i in range(UNITS)]
    bodies[3] = b"poison"
    request = queue.submit_request(
        bodies, limit=UNITS, attempts=attempts, backoff=(0.01, 0.02), lease=30
    )
    Worker(queue, made(folder), concurrency=UNITS).run(until_idle=True)
    results = list(request.results())
    assert [result.index for result in results if result.status == "dead"] == [3]
    assert [result.attempt for result in results] == [
        attempts if i == 3 else 1 for i in range(UNITS)
    ]
    deaths = folder.noted("died")
    assert [int(attempt) for attempt, _ in deaths] == [1, *range(1, attempts + 1)]
    assert len({pid for _, pid in deaths}) == attempts + 1
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_a_poison_body_in_a_slice_of_a_thousand_ends_alone(queue: Queue, folder: Folder):
    """One is dead, all others are done, at their first attempt."""

    def handler(body: bytes) -> bytes:
        if body == b"poison":
            folder.note("died")
            os.kill(os.getpid(), signal.SIGKILL)
        return body

    sizes = [1, 16, 256, 1000]  # as a slice grows
    bodies = [b"poison" if i == 700 else b"%d" % i for i in range(sum(sizes))]
    request = queue.submit_request(bodies, limit=1, attempts=2, backoff=(0.01, 0.02))
    Worker(queue, handler, slice_s=10).run(until_idle=True)
    results = list(request.results())
    assert [result.index for result in results if result.status == "dead"] == [700]
    assert {result.attempt for result in results if result.index != 700} == {1}
    assert len(folder.noted("died")) == 3
    check_settled_once(request)


def children_of(board: LeaseBoard) -> tuple[ProcessPool, tuple[Any, ...]]:
    """Makes the processes of a worker, none started, and returns the records of one."""
    records = tuple(board.records)
    shape: Any = None
    return ProcessPool([Assignment("", "req", "w:1", "7", shape, 20.0, records)], []), records


def waiting(board: LeaseBoard) -> list[bool]:
    """Returns which units must not begin."""
    return [record.is_waiting for record in board.records]


def test_one_unit_works_alone_until_its_process_has_lived_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
    now: list[float],
):
    """It does so for ten seconds from the last start; then the others begin."""
    monkeypatch.setattr("fairlane.worker.pool.start", lambda *_: (0, 0))
    monkeypatch.setattr("fairlane.worker.stack_dump.make", lambda: -1)
    board = LeaseBoard(3)
    children, records = children_of(board)
    children.alone(records)
    seen = []
    for second in (100.0, 105.0, 114.9, 115.0):
        now[0] = second
        if second == 105.0:
            children._start(0)
            children.running.clear()
        assert list(children.collect(restart=True)) == []
        seen.append(waiting(board))
    assert seen == [[False, True, True]] * 3 + [[False, False, False]]


# ------------------------------------------------------------------ a supervisor that fails


@ON_SINGLE
def test_one_worker_runs_twice(queue: Queue):
    """It has one id; a stop counts for one run only."""
    worker = Worker(queue, echo, concurrency=2)
    worker.stop()
    assert worker.run() == 0
    ids = {worker.id}
    for name in ("first", "second"):
        request = queue.submit_request([b"1", b"2"], id=name)
        assert worker.run(until_idle=True) == 0
        assert [result.body for result in request.results()] == [b"1", b"2"]
        ids |= {worker.id, *(result.worker for result in request.results())}
    assert len(ids) == 1


@ON_SINGLE
def test_a_supervisor_that_fails_leaves_no_child_and_no_lease(
    queue: Queue, folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    """Nothing would extend the children's leases: they end, and the leases return uncharged."""

    def hold(body: bytes) -> bytes:
        folder.note("began", os.getpid())
        folder.pass_gate()
        return body

    def fail(worker: Worker, *, until_idle: bool) -> None:
        if len(folder.noted("began")) == 2:
            raise RuntimeError("broken supervisor")

    request = queue.submit_request([b"1", b"2"])
    worker = Worker(queue, hold, processes=2)
    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_tick", fail)
        with pytest.raises(RuntimeError, match="broken supervisor"):
            worker.run()
    pids = {int(pid) for (pid,) in folder.noted("began")}
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    assert (request.progress().held, request.progress().left) == (0, 2)
    assert broken(queue, request.id) == []
    assert queue.status().workers == ()
    folder.open_gate()
    assert worker.run(until_idle=True) == 0
    assert [result.attempt for result in request.results()] == [1, 1]
    check_settled_once(request)


# ------------------------------------------------------------------ what a handler starts


def start_and_signal(body: bytes) -> str:
    """Starts a program that runs until its input ends, and sends it the body's signal."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as program:
        program.send_signal(int(body))
        try:
            return str(program.wait(PATIENCE_S))
        except subprocess.TimeoutExpired:
            program.kill()
            return "deaf"


@pytest.mark.rest
@pytest.mark.parametrize("concurrency", [1, 2])
@ON_SINGLE
def test_a_program_that_a_handler_starts_can_be_terminated(queue: Queue, concurrency: int):
    """The worker's processes ignore signals, but their programs do not inherit that."""
    request = queue.submit_request([b"%d" % signal.SIGTERM, b"%d" % signal.SIGINT])
    Worker(queue, start_and_signal, concurrency=concurrency).run(until_idle=True)
    assert [result.body for result in request.results()] == [b"-15", b"-2"]


# ------------------------------------------------------------------ an outcome in parts

SUMMARY = [b"done", 1, 3, 3, 0, 0, 9, 5, b"", 3_600_000, b""]


def tokens_in(calls: list[Any]) -> list[Any]:
    """Returns what these calls dispatch: the tokens, or `retire`."""
    found = []
    for call in calls:
        assert isinstance(call, Call)
        if call.script.name == "insert_tokens":
            found += [arg.decode() for arg in call.args if isinstance(arg, bytes) and b"#" in arg]
        else:
            found.append(call.script.name)
    return found


def big(count: int, position: int) -> Outcome:
    """Returns an outcome of so many results, each of which fills a part."""
    ids = [entry_id for entry_id, _ in entries_of(*[b"x"] * count)]
    return Outcome(position, 0.001, ids, [b"head", b"x" * 11] * count)


@pytest.fixture
def _parts_of_ten_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits what one complete call may carry."""
    monkeypatch.setattr(settings, "FLUSH_BYTES", 10)


@pytest.mark.usefixtures("_parts_of_ten_bytes")
def test_the_tokens_of_every_part_are_dispatched():
    """Each part's reply may have some, and the last one's are not all."""
    work = work_off(unit_of_its_own(), slice_of(b"1", b"2", b"3"))
    work.send(None)
    step: Any = work.send(big(3, 3))
    keeps = []
    for i in range(3):
        keeps.append(step.args[step.script.params.index("keep")])
        step = work.send([b"ok", 0, [b"5", b"%d.9" % i, 0]])
    keeps.append(step.args[step.script.params.index("keep")])
    with pytest.raises(StopIteration) as end:
        work.send([b"ok", 0, [b"5", b"3.9", 0]])
    assert keeps == [b"1", b"1", b"1", b"u"]
    assert tokens_in(end.value.value) == [f"r1#{i}.9" for i in range(4)]


@pytest.mark.usefixtures("_parts_of_ten_bytes")
def test_the_tokens_of_every_part_go_out_before_the_handler_goes_on():
    """They go out in one round trip, while the rest of the slice is worked on."""
    work = work_off(unit_of_its_own(), slice_of(b"1", b"2", b"3"))
    work.send(None)
    step: Any = work.send(big(2, 2))
    for i in range(3):
        assert isinstance(step, Call)
        step = work.send([b"ok", 1, [b"5", b"%d.9" % i, 0]])
    assert isinstance(step, Batch)
    assert tokens_in(list(step.steps)) == [f"r1#{i}.9" for i in range(3)]


@pytest.mark.usefixtures("_parts_of_ten_bytes")
def test_an_ending_in_the_reply_to_any_part_is_logged():
    """The reply to the last part is only that its lease is gone."""
    work = work_off(unit_of_its_own(), slice_of(b"1"))
    work.send(None)
    work.send(big(1, 1))
    work.send([b"ended", SUMMARY])
    with pytest.raises(StopIteration) as end:
        work.send([b"lost"])
    assert tokens_in(end.value.value) == ["retire"]
