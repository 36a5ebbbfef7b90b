"""Tests orders to a worker: the stacks of the calls that it runs, and the end of one of them."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import CallNotFound, CallShared, InvalidArgument, WorkerNotFound
from fairlane.operations import orders
from fairlane.protocol import keys
from fairlane.worker import Worker, calls
from tests.support.processes.workers import Folder, check_settled_once
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from fairlane.queue import Queue
    from fairlane.records import RunningCall
    from fairlane.request import Request
    from fairlane.worker import Context

pytestmark = ON_SINGLE


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Returns the folder that a test and its handlers share."""
    return Folder(tmp_path)


@contextmanager
def working(queue: Queue, handler: Any, **options: Any) -> Iterator[Worker]:
    """Runs a worker in a thread; ends its calls by force at the end of the block."""
    worker = Worker(queue, handler, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        wait_until(lambda: _is_over(worker, thread), why="the worker has ended")
        thread.join()


def _is_over(worker: Worker, thread: threading.Thread) -> bool:
    children = getattr(worker, "_children", None)
    for pid in list(children.running) if children is not None and thread.is_alive() else ():
        from fairlane.worker.pool import kill

        kill(pid)
    return not thread.is_alive()


def running(request: Request, count: int = 1) -> list[RunningCall]:
    """Returns the calls of a request, as soon as so many run."""
    found: list[RunningCall] = []

    def look() -> bool:
        found[:] = [call for worker in request.stacks() for call in worker.calls]
        return len(found) >= count

    wait_until(look, why="the calls run")
    return sorted(found, key=lambda call: call.index or 0)


def hang_here(context: Any) -> None:
    """Waits for ever."""
    threading.Event().wait()


def hang(body: bytes, context: Context) -> bytes:
    """Hangs for the body `stuck`, at its first attempt."""
    if body == b"stuck" and context.attempt == 1:
        hang_here(context)
    return body


async def wait_here() -> None:
    """Awaits for ever."""
    await asyncio.Event().wait()


async def hang_async(body: bytes, context: Context) -> bytes:
    """Hangs for the body `stuck`, and blocks the loop for `block`, at its first attempt."""
    if context.attempt == 1:
        if body == b"stuck":
            await wait_here()
        if body == b"block":
            threading.Event().wait()
    return body


def names(call: RunningCall) -> list[str]:
    """Returns the functions of a stack, the innermost first."""
    return [line.rpartition(" in ")[2] for line in call.lines]


# ------------------------------------------------------------------ stacks


def test_the_calls_of_a_request_are_shown_with_the_users_lines(queue: Queue):
    """Each with its index, attempt, process and thread; none is ended or delayed by it."""
    request = queue.submit_request([b"a", b"stuck", b"b", b"stuck"], limit=4)
    with working(queue, hang, concurrency=3) as worker:
        first, second = running(request, 2)
        assert (first.index, second.index) == (1, 3)
        for call in (first, second):
            assert names(call)[-2:] == ["hang_here", "hang"]
            assert (call.id, call.worker, call.attempt, call.attempts) == (
                request.id, worker.id, 1, 5,
            )  # fmt: skip
            assert (call.beside, call.problem) == (1, None)
            assert call.thread != first.process
        assert first.process == second.process
        assert queue.stacks(worker.id).calls != ()
        again = running(request, 2)
        assert [call.process for call in again] == [first.process] * 2
        assert again[0].ran_ms > first.ran_ms


def test_calls_of_an_async_handler_are_shown_though_they_have_no_thread(queue: Queue):
    request = queue.submit_request([b"stuck", b"stuck"], limit=2)
    with working(queue, hang_async, concurrency=2):
        for call in running(request, 2):
            assert names(call)[-2:] == ["wait_here", "hang_async"]
            assert call.problem is None


def test_a_blocked_event_loop_is_named_with_the_line_that_blocks_it(queue: Queue):
    request = queue.submit_request([b"stuck", b"block"], limit=2)
    with working(queue, hang_async, concurrency=2):
        for call in running(request, 2):
            assert names(call)[-1] == "hang_async"
            assert "event loop" in (call.problem or "")


def test_a_worker_that_runs_nothing_answers_so(queue: Queue):
    """It reads the count of orders with its heartbeat."""
    with working(queue, hang) as worker:
        wait_until(lambda: bool(queue.workers().workers), why="it is registered")
        found = queue.stacks(worker.id)
    assert (found.calls, found.problem) == ((), None)


def test_not_asked_a_worker_sends_no_command_for_orders(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """The count is in replies that a worker reads anyway. Only an order makes it read its hash."""
    request = queue.submit_request([b"stuck"])
    read: list[str] = []

    def noted(name: str, worker: str) -> Any:
        read.append(worker)
        return orders.read_orders(name, worker)

    monkeypatch.setattr("fairlane.worker.orders.read_orders", noted)
    with working(queue, hang) as worker:
        wait_until(lambda: request.progress().held == 1, why="it runs")
        beats = worker._heartbeat._answered
        wait_until(lambda: worker._heartbeat._answered > beats + 2, why="it beats twice")
        assert (read, worker._orders.is_working) == ([], False)
        assert queue.stacks(worker.id).calls
        assert read == [worker.id]


def test_a_worker_that_is_gone_is_named_in_one_sentence(queue: Queue, redis_client: redis.Redis):
    """So is one that does not beat any more, with the time of its last beat."""
    with pytest.raises(WorkerNotFound, match=r"has no worker w:1: fairlane workers"):
        queue.stacks("w:1")
    seconds, _ = redis_client.time()
    redis_client.zadd(keys.workers(queue.name), {"w:1": seconds * 1000 - 60_000})
    with pytest.raises(WorkerNotFound, match=r"has not beaten for (59|60|61) s"):
        queue.stacks("w:1")
    redis_client.delete(keys.workers(queue.name))


@pytest.mark.parametrize("count", [2, 300])  # they wait in a string, or in a stream
def test_a_call_is_shown_in_its_short_form_without_what_is_hidden(
    queue: Queue, redis_client: redis.Redis, count: int
):
    bodies = [b'[1,"send_mail",{"to":"ann","password":"hunter%d"}]' % i for i in range(count)]
    queue.submit_request(bodies, id="r1", redact="password")
    entries: Any = redis_client.xrange(keys.bodies("r1"), count=2)
    entry = entries[1][0] if entries else b"1-1"
    task, words = queue.driver.run(orders.read_call("r1", entry))
    assert (task, words.partition("password")[0]) == ("send_mail", 'send_mail(to="ann", ')
    assert "hunter" not in words
    assert queue.driver.run(orders.read_call("gone", entry)) == ("", "")


def test_an_answer_is_bounded(queue: Queue):
    """Lines and calls above the bounds are counted, those that run for longest are kept."""
    from fairlane.records import RunningCall

    rows = [
        RunningCall(
            worker="w:1", id="r1", index=i, count=1, task=None, permit=0, fence=1,
            attempt=1, attempts=1, ran_ms=i, limit_ms=None, process=1, thread=1, beside=0,
            lines=tuple(["x" * 500] * 50),
        )
        for i in range(150)
    ]  # fmt: skip
    text = orders.shown_calls(rows)
    assert len(text) < 2 * orders.BYTES_MOST
    found = json.loads(text)
    assert found["calls"][0]["index"] == 149
    assert found["more"] == 150 - len(found["calls"])
    assert [len(found["calls"][0]["lines"]), len(found["calls"][0]["lines"][0])] == [30, 200]


# ------------------------------------------------------------------ kill


@pytest.mark.parametrize(
    ("verdict", "attempts", "outcome"),
    [
        ("charge", 2, ("done", 2)),
        ("charge", 1, ("dead", 1)),
        ("dead", 5, ("dead", 1)),
    ],
)
@pytest.mark.parametrize("handler", [hang, hang_async], ids=["sync", "async"])
def test_one_call_is_ended_with_the_verdict_that_was_asked_for(
    handler: Any, verdict: str, attempts: int, outcome: tuple[str, int], queue: Queue
):
    """The process of a sync handler is killed; an async one is cancelled. The next calls run."""
    request = queue.submit_request(
        [b"stuck", b"a"], limit=1, attempts=attempts, backoff=(0.01, 0.02)
    )
    with working(queue, handler):
        running(request)
        killed = request.kill(0, verdict, by="anna")
        assert (killed.index, killed.attempt, killed.verdict) == (0, 1, verdict)
        assert killed.ended_process is (handler is hang)
        assert request.wait(timeout=PATIENCE_S) == "done"
    results = list(request.results())
    assert [(one.status, one.attempt) for one in results] == [outcome, ("done", 1)]
    if outcome[0] == "dead":
        (dead,) = request.dead()
        assert dead.reason == ("killed" if verdict == "dead" else "attempts")
        assert "killed by" in dead.error
        assert "hang" in dead.error
    check_settled_once(request)


def test_a_call_that_is_freed_runs_again_at_the_same_attempt(queue: Queue, folder: Folder):
    def handler(body: bytes) -> bytes:
        folder.note("began")
        if len(folder.noted("began")) == 1:
            threading.Event().wait()
        return body

    request = queue.submit_request([b"x"], attempts=1)
    with working(queue, handler):
        running(request)
        request.kill(0, "free")
        assert request.wait(timeout=PATIENCE_S) == "done"
    (result,) = request.results()
    assert (result.status, result.attempt) == ("done", 1)


def test_others_of_the_process_are_counted_before_and_run_again_uncharged(queue: Queue):
    """Nothing is done until that is confirmed."""
    request = queue.submit_request([b"stuck"] * 3, limit=3, attempts=2, backoff=(0.01, 0.02))

    def handler(body: bytes, context: Context) -> bytes:
        if context.attempt == 1 and not context.cancelled:
            threading.Event().wait()
        return body

    with working(queue, handler, concurrency=3):
        before = running(request, 3)
        with pytest.raises(CallShared, match=r"2 other calls in process \d+ .* --yes"):
            request.kill(1)
        assert [call.process for call in running(request, 3)] == [before[0].process] * 3
        killed = request.kill(1, others=True)
        assert (killed.ended_process, killed.others) == (True, 2)
        wait_until(lambda: request.progress().done == 1, why="its next attempt is done")
        again = running(request, 2)
        assert [(call.index, call.attempt) for call in again] == [(0, 1), (2, 1)]
        assert again[0].process != before[0].process


def test_a_call_that_swallows_its_cancellation_ends_with_its_process(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(calls, "GRACE_S", 0.3)

    async def deaf(body: bytes, context: Context) -> bytes:
        while context.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        return body

    request = queue.submit_request([b"x"], attempts=2, backoff=(0.01, 0.02))
    with working(queue, deaf):
        running(request)
        assert request.kill(0).ended_process
        assert request.wait(timeout=PATIENCE_S) == "done"
    (result,) = request.results()
    assert (result.status, result.attempt) == ("done", 2)


def test_what_does_not_run_cannot_be_killed(queue: Queue):
    """It has just ended, waits, or was never there: one sentence each."""
    request = queue.submit_request([b"a", b"stuck", b"b"], limit=1)
    with pytest.raises(CallNotFound, match=r"no worker runs sub-request 1 .* it waits"):
        request.kill(1)
    with working(queue, hang):
        running(request)
        with pytest.raises(CallNotFound, match="no worker runs sub-request 0"):
            request.kill(0)
        with pytest.raises(InvalidArgument, match=r"has 3 sub-requests, from 0: .* no index 3"):
            request.kill(3)
        for index in (-1, True, "1"):
            with pytest.raises(InvalidArgument, match="a whole number from 0"):
                request.kill(index)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="choose one of"):
            request.kill(1, "now")
        request.kill(1, "dead")
        assert request.wait(timeout=PATIENCE_S) == "done"
    with pytest.raises(CallNotFound, match="the request has ended"):
        request.kill(1)


@pytest.mark.parametrize("changed", [{"fence": "1"}, {"attempt": 2}, {"k": "9"}, {"index": 0}])
def test_an_order_that_is_late_hits_no_other_call(changed: dict[str, Any], queue: Queue):
    """Permit, fence and attempt must be those of the call that was meant."""
    request = queue.submit_request([b"a", b"stuck"], limit=1)
    with working(queue, hang) as worker:
        (call,) = running(request)
        meant: dict[str, Any] = {
            "request_id": request.id, "index": 1, "k": str(call.permit),
            "fence": str(call.fence), "attempt": 1, "verdict": "charge",
        }  # fmt: skip
        order = orders.WorkerOrder("ab", "kill", **(meant | changed))
        found = queue.driver.run(orders._ask(queue.name, worker.id, order))
        assert "has just ended: nothing was done" in found["problem"]
        assert [one.process for one in running(request)] == [call.process]


def test_an_order_of_a_later_release_is_refused_in_one_sentence(
    queue: Queue, redis_client: redis.Redis
):
    """So is a text that is no order; both leave the worker as it is."""
    with working(queue, hang) as worker:
        wait_until(lambda: bool(queue.workers().workers), why="it is registered")
        order = orders.WorkerOrder("ab", "dance")
        found = queue.driver.run(orders._ask(queue.name, worker.id, order))
        assert "earlier release" in found["problem"]
        redis_client.hset(keys.orders(queue.name, worker.id), "cd", "no order")
        redis_client.hincrby(keys.conf(queue.name), "orders", 1)
        answer = keys.answer(queue.name, "cd")
        wait_until(lambda: redis_client.exists(answer) == 1, why="it is refused")
