"""Tests that each dead sub-request is requeued once, despite crashes and others who requeue."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import DeadNotFound, RequestEnded
from fairlane.model import DeadChoice
from fairlane.operations import audit, workers
from fairlane.operations import dead_letters as dead_module
from fairlane.operations.dead_letters import requeue_dead
from fairlane.protocol import keys
from tests.support.operations.stepping import script_of
from tests.support.run.for_each import for_each
from tests.support.scripts.dead_letters import ended, running
from tests.support.scripts.requests import cut, insert, numbered, once, settle, work_off

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

THREE = DeadChoice.of(indexes=range(3))
ALL = DeadChoice()


@pytest.fixture(autouse=True)
def two_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requeue of more than two takes several calls."""
    monkeypatch.setattr(dead_module, "CALL_REQUEUED", 2)


def drive(
    driver: SyncDriver, choice: DeadChoice, before: Callable[[Any], None] = lambda _: None
) -> int:
    """Requeues; `before` gets each step before it runs."""
    operation, reply = requeue_dead("r1", choice), None
    while True:
        try:
            step = operation.send(reply)
            before(step)
        except StopIteration as end:
            count: int = end.value
            return count
        reply = driver.run(once(step))


def work_all(driver: SyncDriver, lane: Lane) -> list[bytes]:
    """Works everything off, also sub-requests whose tokens were lost in a crash."""
    seen = work_off(driver)
    for name in lane.client.zrange(keys.active("req"), 0, -1):
        driver.run(audit.remint_lost("req", driver.run(audit.queued_long(name.decode(), -1))))
    return seen + work_off(driver)


def log(lane: Lane) -> list[bytes | None]:
    """Returns how often the request had been reopened at each of its ends, by the log."""
    entries = lane.client.xrange(keys.completed("req"))
    return [fields.get(b"reopened") for _, fields in entries]


def release(lane: Lane) -> None:
    """Lets a request end whose requeue has died, as the reaper does a minute later."""
    if hold := int(lane.hash().get("hold") or 0):
        opened = (lane.client.hget(lane.names[2], "opened") or b"").decode()
        lane.client.hset(lane.names[2], "opened", opened.replace(str(hold), "1"))
        lane.run(workers.reap_all("req", "r1"))


# ------------------------------------------------------------------ crashes and overlaps


@for_each("others", [ALL, DeadChoice.of(indexes=[1, 3]), THREE])
@for_each("steps", range(16))
def test_cut_off_anywhere_another_choice_runs_none_of_them_twice(
    queue: Queue, lane: Lane, steps: int, others: DeadChoice
):
    """A crash follows any step; the next caller has another choice that overlaps."""
    request = ended(queue, numbered(5))
    cut(lane.driver, requeue_dead("r1", THREE), [], steps)
    for choice in (others, ALL):
        with contextlib.suppress(DeadNotFound):
            lane.run(requeue_dead("r1", choice))
    seen = work_all(lane.driver, lane)
    release(lane)
    assert sorted(seen) == numbered(5)
    assert list(request.dead()) == []
    assert (request.state(), request.progress().done) == ("done", 5)
    assert log(lane)[0] is None
    assert log(lane)[1:] == [b"%d" % number for number in range(1, len(log(lane)))]


@for_each("steps", range(16))
@for_each("second", [ALL, DeadChoice.of(indexes=[2, 3, 4])])
def test_two_concurrent_requeues_with_choices_that_overlap_run_each_once(
    queue: Queue, lane: Lane, second: DeadChoice, steps: int
):
    """The second caller runs between any two steps of the first one."""
    request = ended(queue, numbered(5))
    left, moved = steps, 0

    def interrupt(_: Any) -> None:
        nonlocal left, moved
        left -= 1
        if left == -1:
            with contextlib.suppress(DeadNotFound):
                count = queue.driver.run(requeue_dead("r1", second))
                moved += count

    with contextlib.suppress(DeadNotFound):
        count = drive(queue.driver, THREE, interrupt)
        moved += count
    moved += queue.driver.run(requeue_dead("r1"))
    assert (moved, sorted(work_off(queue.driver))) == (5, numbered(5))
    assert (request.state(), request.progress().dead) == ("done", 0)
    assert log(lane) == [None, b"1"]


@for_each("steps", range(16))
def test_a_worker_between_any_two_steps_ends_no_repair_twice(queue: Queue, lane: Lane, steps: int):
    """The request is held while a requeue of several calls goes on."""
    request = ended(queue, numbered(5))
    seen: list[bytes] = []
    left = steps

    def work(_: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            seen.extend(work_off(queue.driver))

    assert drive(queue.driver, ALL, work) == 5
    assert sorted(seen + work_off(queue.driver)) == numbered(5)
    assert request.state() == "done"
    assert log(lane) == [None, b"1"]


def test_a_requeue_that_meets_a_cancel_does_not_open_the_request_again(queue: Queue, lane: Lane):
    request = ended(queue, numbered(5))
    calls = 0

    def cancel(step: Any) -> None:
        nonlocal calls
        calls += script_of(step) == "requeue_dead"
        if calls == 2:
            calls += 1
            request.cancel()

    with pytest.raises(RequestEnded, match=r"was cancelled while .* 2 of them had been"):
        drive(queue.driver, ALL, cancel)
    assert request.state() == "cancelled"
    assert log(lane) == [None, b"1"]


@for_each("what", ["ended again", "given up"])
def test_what_changes_before_the_first_call_is_seen(queue: Queue, lane: Lane, what: str):
    """Another caller has opened it, and it has ended; or the auditor gave up the intent."""
    request = ended(queue, numbered(3))
    is_first = True

    def change(step: Any) -> None:
        nonlocal is_first
        if script_of(step) == "requeue_dead" and is_first:
            is_first = False
            if what == "ended again":
                request.requeue_dead(indexes=[0])
                work_off(queue.driver)
            else:
                score = lane.client.zscore(keys.active("req"), "r1")
                lane.run(workers.look_at("req", "r1", str(score), lane.now))

    moved = drive(queue.driver, DeadChoice.of(indexes=[1, 2]), change)
    work_off(queue.driver)
    assert (moved, request.state()) == (2, "done")
    assert log(lane) == ([None, b"1", b"2"] if what == "ended again" else [None, b"1"])


# ------------------------------------------------------------------ lost replies


def twice(driver: SyncDriver, choice: DeadChoice) -> int:
    """Requeues, and sends every step twice, because the first reply is lost."""
    return drive(driver, choice, lambda step: driver.run(once(step)))


def test_lost_replies_after_the_end_change_no_answer(queue: Queue, lane: Lane):
    ended(queue, numbered(5))
    assert twice(queue.driver, ALL) == 5
    assert queue.driver.run(requeue_dead("r1")) == 0
    assert sorted(work_off(queue.driver)) == numbered(5)
    assert log(lane) == [None, b"1"]


def test_lost_replies_before_the_end_change_no_answer(queue: Queue):
    request, held = running(queue)
    assert twice(queue.driver, ALL) == 1
    held.entries = held.entries[1:]
    settle(queue.driver, held)
    assert work_off(queue.driver) == [b"b0"]
    assert request.progress().done == 3


def test_a_lost_reply_after_which_the_request_ended_is_found(queue: Queue):
    request, held = running(queue)
    is_first = True

    def before(step: Any) -> None:
        nonlocal is_first
        if script_of(step) == "requeue_dead" and is_first:
            is_first = False
            reply = queue.driver.run(once(step))
            insert(queue.driver, "req", "r1", reply[3])
            held.entries = held.entries[1:]
            settle(queue.driver, held)
            work_off(queue.driver)
            assert request.state() == "done"

    assert drive(queue.driver, ALL, before) == 1
