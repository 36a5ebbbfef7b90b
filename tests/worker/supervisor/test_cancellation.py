"""Tests a cancelled request whose handler runs: the handler sees it within a second."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument, NodeAway, RedisUnreachable
from fairlane.operations.change import cancel
from fairlane.operations.orders import QueueCounts
from fairlane.protocol import keys
from fairlane.worker import Reject, Worker, batch_handler
from fairlane.worker.board import LeaseBoard
from fairlane.worker.calls import Runner
from fairlane.worker.handlers import shape_of
from fairlane.worker.limits import CancellationWatch
from tests.support.processes.workers import Folder
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE, OP, slice_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane.errors import FairlaneError
    from fairlane.queue import Queue
    from fairlane.worker import Context
    from fairlane.worker.board import LeaseRecord
    from fairlane.worker.calls import Outcome
    from tests.support.processes.workers import Workers

SOON_S = 2.0  # a second, and one more for a machine that is busy
LEASE_S = 30.0


def test_a_running_handler_sees_within_a_second_that_its_request_is_cancelled(
    queue: Queue, workers: Workers, folder: Folder
):
    """Its lease of 30 s is extended only after a third of it."""
    request = queue.submit_request([b"never"], limit=1)
    workers.start("until_cancelled")
    folder.wait_noted("began")
    before = time.monotonic()
    assert not request.cancel()
    folder.wait_noted("cancelled")
    assert time.monotonic() - before < SOON_S
    assert request.wait(timeout=PATIENCE_S) == "cancelled"


@pytest.mark.rest
@ON_SINGLE
def test_a_running_handler_sees_soon_that_the_deadline_has_passed(
    queue: Queue, workers: Workers, folder: Folder
):
    """The leader stops the request at its next check, which is due at the deadline."""
    assert workers.start("until_cancelled").id  # it is there before the deadline begins
    request = queue.submit_request([b"never"], limit=1, deadline=3)
    ends_at = time.monotonic() + 3
    folder.wait_noted("began")
    folder.wait_noted("cancelled")
    assert time.monotonic() - ends_at < SOON_S + 1  # the leader checks about once a second
    assert request.wait(timeout=PATIENCE_S) == "done"


@pytest.mark.rest
@pytest.mark.parametrize("is_left_open", [False, True])
@ON_SINGLE
def test_a_running_handler_sees_that_its_producer_gave_the_request_up(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis, *, is_left_open: bool
):
    """The producer discards what it could not complete; or it is gone, and the auditor cancels."""

    def bodies() -> Iterator[bytes]:
        yield from [b"never"] * 2001  # two chunks, after which the first is sent, and one more
        folder.wait_noted("began")
        ends = lease_ends()
        # The first count that a supervisor reads is new to it, so it extends the lease.
        wait_until(lambda: lease_ends() > ends)
        began.append(time.monotonic())
        if is_left_open:
            redis_client.hset(keys.request_hash("mine"), "open_until", 1)
            workers.hurry()
            folder.wait_noted("cancelled")
        raise ValueError("no more")

    def lease_ends() -> float:
        return float(str(redis_client.zscore(keys.leases("mine"), "0")))

    began: list[float] = []
    workers.start("until_cancelled", slice_s=0)
    with pytest.raises(ValueError, match="no more"):
        queue.submit_request(bodies(), id="mine", limit=1)
    folder.wait_noted("cancelled")
    assert time.monotonic() - began[0] < SOON_S + is_left_open


@pytest.mark.parametrize("is_batch", [False, True])
@ON_SINGLE
def test_an_async_handler_is_cancelled_within_a_second(
    queue: Queue, folder: Folder, *, is_batch: bool
):
    """It ends with its request, of which nothing more is done; the next request is worked on."""

    async def wait(body: Any) -> Any:
        if body in (b"quick", [b"quick"]):
            return body
        folder.note("began")
        try:
            await asyncio.Event().wait()
        finally:
            folder.note("ended")

    request = queue.submit_request([b"slow"] * 3, limit=1)
    other = queue.submit_request([b"quick"], priority=9)
    cancelled: list[float] = []

    def watch(_: dict[str, int]) -> bool:
        if folder.noted("began") and not cancelled:
            request.cancel()
            cancelled.append(time.monotonic())
        if cancelled and folder.noted("ended"):
            cancelled.append(time.monotonic())
        return False

    handler = batch_handler(wait) if is_batch else wait
    Worker(queue, handler, slice_s=0).run(until_idle=True, watch=watch)
    assert cancelled[1] - cancelled[0] < SOON_S
    assert len(folder.noted("began")) == 1
    assert (request.state(), other.state()) == ("cancelled", "done")
    assert (request.progress().cancelled, request.progress().failures) == (3, 0)


# ------------------------------------------------------------------ the grace


def go_on(body: bytes, context: Context) -> bytes:
    """Ignores the cancel."""
    folder = Folder.of_handler()
    folder.note("began", context.index, context.attempt)
    if body == b"deaf":
        threading.Event().wait()
    folder.pass_gate()
    return body


@ON_SINGLE
def test_a_sync_handler_that_ignores_a_cancel_is_ended_after_the_grace(
    queue: Queue, folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It is uncharged, as are other leases of its process: these run again and are done."""
    monkeypatch.setenv("FAIRLANE_TEST_FOLDER", str(folder.path))
    deaf = queue.submit_request([b"deaf"] * 3, limit=1, attempts=1)
    other = queue.submit_request([b"other"], limit=1, attempts=1)
    times: list[float] = []

    def watch(_: dict[str, int]) -> bool:
        if not times and len(folder.noted("began")) == 2:
            deaf.cancel()
            times.append(time.monotonic())
        if len(times) == 1 and deaf.state() == "cancelled":
            times.append(time.monotonic())
            folder.open_gate()
        return False

    worker = Worker(queue, go_on, slice_s=0, concurrency=2, cancel_grace_s=0.5)
    worker.run(until_idle=True, watch=watch)
    assert 0.5 <= times[1] - times[0] < 0.5 + SOON_S
    progress = deaf.progress()
    assert (deaf.state(), progress.cancelled, progress.failures) == ("cancelled", 3, 0)
    assert (other.state(), other.progress().failures) == ("done", 0)
    assert [result.attempt for result in other.results()] == [1]
    assert "sub-request 0 of request" in caplog.text
    assert "went on for 0.5 s after the cancel; no attempt is charged" in caplog.text
    assert worker_crashes(caplog) == 0


def worker_crashes(caplog: pytest.LogCaptureFixture) -> int:
    return sum("ended by signal" in line for line in caplog.messages)


@ON_SINGLE
def test_with_a_long_grace_a_handler_may_finish_after_a_cancel(
    queue: Queue, workers: Workers, folder: Folder
):
    request = queue.submit_request([b"a"] * 3, limit=1)
    worker = workers.start("hold", slice_s=0)
    folder.wait_noted("began")
    request.cancel()
    last = worker.health()
    wait_until(lambda: worker.health() != last or request.state() == "cancelling")
    folder.open_gate()
    assert request.wait(timeout=PATIENCE_S) == "cancelled"
    assert (request.progress().done, worker.health()["restarts"]) == (1, 0)


@pytest.mark.rest
@ON_SINGLE
def test_a_handler_that_ends_within_the_grace_is_not_killed(
    queue: Queue, workers: Workers, folder: Folder
):
    request = queue.submit_request([b"never"], limit=1)
    worker = workers.start("until_cancelled", cancel_grace_s=30)
    folder.wait_noted("began")
    request.cancel()
    assert request.wait(timeout=PATIENCE_S) == "cancelled"
    assert len(folder.noted("cancelled")) == 1
    assert worker.health()["restarts"] == 0


@pytest.mark.parametrize("grace_s", [-1, float("nan"), 86_401, True, "5s"])
def test_a_grace_that_is_not_valid_is_refused(queue: Queue, grace_s: Any):
    with pytest.raises(InvalidArgument, match=r"cancel_grace_s .* is not valid: 0 to 86,400 sec"):
        Worker(queue, quick, cancel_grace_s=grace_s)


# ------------------------------------------------------------------ what the supervisor reads


class Counter:
    """A driver that answers with the count of cancelled requests, or raises."""

    def __init__(self) -> None:
        self.count: Any = b"1"
        self.reads = 0

    def run(self, operation: Any) -> Any:
        """Returns the count."""
        step = operation.send(None)
        assert step.args == (b"HMGET", keys.conf("req"), b"cancels", b"orders", b"time_limits")
        assert step.away_s == 1  # it does not wait repeatedly for a node that is away
        operation.close()
        self.reads += 1
        if isinstance(self.count, Exception):
            raise self.count
        return QueueCounts(self.count, 0, 0)


@pytest.fixture
def asked(now: list[float]) -> tuple[Counter, Callable[[float], bool]]:
    """Returns a driver, and whether something was cancelled, for a lease taken at 100 s."""
    driver: Any = Counter()
    board, cancels = LeaseBoard(1), CancellationWatch(driver, "req")
    board.records[0].hold("r1", "0", 7, OP, 100.0, LEASE_S)

    def ask(at: float) -> bool:
        now[0] = at
        return cancels.are_new(board.held())

    return driver, ask


def test_nothing_is_read_while_leases_are_young(asked: Any):
    driver, ask = asked
    assert not ask(100.2)
    assert driver.reads == 0


def test_nothing_is_read_without_a_lease(now: list[float]):
    driver: Any = Counter()
    assert not CancellationWatch(driver, "req").are_new([])
    assert driver.reads == 0


def test_the_first_read_is_new_and_then_only_a_change_is(asked: Any):
    """A request may have been cancelled since its lease was taken."""
    driver, ask = asked
    assert [ask(100.5), ask(101.0), ask(101.5)] == [True, False, False]
    driver.count = b"2"
    assert [ask(102.0), ask(102.5)] == [True, False]
    driver.count = None
    assert ask(103.0)


def test_the_count_is_read_about_twice_a_second(asked: Any):
    driver, ask = asked
    for tick in range(100):
        ask(101.0 + tick / 10)
    assert 20 <= driver.reads <= 26


def test_an_unreachable_redis_is_read_again_later(asked: Any):
    """The extensions of leases must not wait for it."""
    driver, ask = asked
    driver.count = RedisUnreachable("no answer")
    assert [ask(101.0), ask(102.0), ask(105.0)] == [False] * 3
    assert driver.reads == 1
    driver.count = b"1"
    assert ask(106.1)


# ------------------------------------------------------------------ cancel


def test_a_cancel_counts_up_if_something_is_held(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    waiting = queue.submit_request([b"never"], priority=9)
    waiting.cancel()
    assert redis_client.hget(keys.conf(queue.name), "cancels") is None
    held = queue.submit_request([b"gate"])
    workers.start("until_cancelled")
    folder.wait_noted("began")
    held.cancel()
    held.cancel()
    assert int(redis_client.hget(keys.conf(queue.name), "cancels") or 0) >= 1


@pytest.mark.parametrize("error", [RedisUnreachable("no answer"), NodeAway("no answer")])
def test_a_cancel_has_worked_though_the_node_of_its_queue_is_away(error: FairlaneError):
    """The supervisors then see it when they extend their leases."""
    operation = cancel("r1", "why", queue="req")
    operation.send(None)
    operation.send(b"req")
    step: Any = operation.send([b"ok", []])
    assert step.steps[0].args == (b"HINCRBY", keys.conf("req"), b"cancels", 1)
    assert step.away_s == settings.AWAY_S
    with pytest.raises(StopIteration) as ended:
        operation.throw(error)
    assert ended.value.value is False


# ------------------------------------------------------------------ an async unit


def run_stopped(
    handler: Callable[..., Any], *bodies: bytes, stop: Callable[[LeaseRecord, Any], None]
) -> tuple[Outcome, Runner]:
    """Runs an async handler; `stop` is called while it waits."""
    board = LeaseBoard(1)
    (record,) = board.records
    record.hold("r1", "0", 7, OP, time.monotonic(), LEASE_S)
    runner = Runner(shape_of(handler), record)

    async def go() -> Outcome:
        task = asyncio.create_task(runner.run_slice_async(slice_of(*bodies), 0))
        while not runner.is_calling:  # noqa: ASYNC110  nothing but the call sets it
            await asyncio.sleep(0)
        stop(record, board.held()[0])
        while not task.done():
            runner.cancel_unwanted()
            await asyncio.sleep(0)
        return task.result()

    return asyncio.run(go()), runner


def stop_lease(record: LeaseRecord, held: Any) -> None:
    record.stop(held)


async def forever(body: bytes) -> bytes:
    await asyncio.Event().wait()
    return body


@pytest.mark.parametrize("limit_s", [None, 60])
def test_what_was_cancelled_has_no_verdict_and_the_rest_is_not_begun(limit_s: float | None):
    async def handler(body: bytes) -> bytes:
        return await forever(body) if body == b"b" else body

    outcome, _ = run_stopped(
        handler if limit_s is None else Limited(handler), b"a", b"b", b"c", stop=stop_lease
    )
    assert (outcome.position, outcome.is_over) == (1, True)
    assert (len(outcome.ids), outcome.verdicts) == (1, [])


class Limited:
    """A handler with a time limit."""

    fairlane_time_limit_s = 60.0

    def __init__(self, call: Callable[[bytes], Any]) -> None:
        self.call = call

    async def __call__(self, body: bytes) -> Any:
        return await self.call(body)


def test_what_a_handler_raises_because_it_was_cancelled_is_no_verdict():
    async def handler(body: bytes) -> bytes:
        try:
            return await forever(body)
        finally:
            raise Reject("cleaned up")

    outcome, _ = run_stopped(handler, b"a", stop=stop_lease)
    assert (outcome.position, outcome.verdicts, outcome.is_over) == (0, [], True)


def test_what_a_handler_returns_though_it_was_cancelled_is_its_result():
    async def handler(body: bytes) -> bytes:
        try:
            return await forever(body)
        except asyncio.CancelledError:
            return b"saved"

    outcome, _ = run_stopped(handler, b"a", stop=stop_lease)
    assert outcome.results[1] == b"saved"


def test_a_unit_goes_on_after_its_call_was_cancelled():
    """Nothing of the cancellation is left in its task."""
    _, runner = run_stopped(forever, b"a", stop=stop_lease)
    runner.record.release()
    runner.record.hold("r2", "0", 7, OP, time.monotonic(), LEASE_S)

    async def again() -> Outcome:
        task = asyncio.current_task()
        outcome = await Runner(shape_of(quick), runner.record).run_slice_async(slice_of(b"a"), 0)
        assert task is not None
        assert task.cancelling() == 0
        return outcome

    assert len(asyncio.run(again()).ids) == 1


async def quick(body: bytes) -> bytes:
    return body


def test_a_lease_that_runs_out_by_the_clock_cancels_no_call(monkeypatch: pytest.MonkeyPatch):
    """Redis may be unreachable: then the result may still be in time."""
    opened: list[asyncio.Event] = []

    async def handler(body: bytes) -> bytes:
        opened.append(asyncio.Event())
        await opened[0].wait()
        return body

    def run_out(record: LeaseRecord, _: Any) -> None:
        late = time.monotonic() + LEASE_S
        monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: late)
        wait_until(lambda: record.is_stopped)
        asyncio.get_running_loop().call_soon(opened[0].set)

    outcome, _ = run_stopped(handler, b"a", stop=run_out)
    assert len(outcome.ids) == 1
