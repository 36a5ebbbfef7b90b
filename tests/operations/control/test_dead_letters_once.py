"""Tests that each dead sub-request of an ended request is requeued once, despite crashes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import DeadNotFound, RedisFull, RequestEnded, RequestExists
from fairlane.model import DeadChoice
from fairlane.operations import audit
from fairlane.operations import dead_letters as dead_module
from fairlane.operations.dead_letters import requeue_dead
from fairlane.protocol import keys
from fairlane.protocol.steps import NextChunk, SingleServer
from tests.support.operations.stepping import script_of
from tests.support.run.for_each import for_each
from tests.support.scripts.dead_letters import ended, running
from tests.support.scripts.requests import cut, insert, next_slice, numbered, once, settle, work_off

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

THREE = DeadChoice.of(indexes=range(3))
ALL = DeadChoice()
BIG = [b"%d" % i + b"x" * (1 << 19) for i in range(5)]  # more than one chunk


def drive(
    driver: SyncDriver, choice: DeadChoice, before: Callable[[Any], None] = lambda _: None
) -> tuple[str, int]:
    """Requeues as in a cluster; `before` gets each step before it runs."""
    operation, reply = requeue_dead("r1", choice), None
    while True:
        try:
            step = operation.send(reply)
            before(step)
        except StopIteration as end:
            new_id, count = end.value
            return new_id, count
        reply = None if isinstance(step, SingleServer) else driver.run(once(step))


def work_all(driver: SyncDriver, lane: Lane) -> list[bytes]:
    """Works everything off, also sub-requests whose tokens were lost in a crash."""
    seen = work_off(driver)
    for name in lane.client.zrange(keys.active("req"), 0, -1):
        driver.run(audit.remint_lost("req", driver.run(audit.queued_long(name.decode(), -1))))
    return seen + work_off(driver)


def cut_before(driver: SyncDriver, name: str, count: int, choice: DeadChoice = ALL) -> None:
    """Requeues, and stops as in a crash before the `count`th call of the script `name`."""
    left = count

    def stop(step: Any) -> None:
        nonlocal left
        left -= script_of(step) == name
        if not left:
            raise KeyError(name)

    with pytest.raises(KeyError):
        drive(driver, choice, stop)


# ------------------------------------------------------------------ crashes and overlaps


@for_each("others", [ALL, DeadChoice.of(indexes=[1, 3]), THREE])
@for_each("steps", range(24))
def test_cut_off_anywhere_another_choice_runs_none_of_them_twice(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch, steps: int,
    others: DeadChoice,
):  # fmt: skip
    """A crash follows any step; the next caller has another choice that overlaps."""
    monkeypatch.setattr(dead_module, "CALL", 2)
    request = ended(queue, numbered(5))
    cut(lane.driver, requeue_dead("r1", THREE), [], steps)
    with contextlib.suppress(DeadNotFound):
        lane.run(requeue_dead("r1", others))
    lane.run(requeue_dead("r1"))
    assert sorted(work_all(lane.driver, lane)) == numbered(5)
    assert list(request.dead()) == []
    assert not [name for name in lane.hash() if name.startswith("claimed:")]


@pytest.mark.rest
@for_each("steps", range(24))
@for_each("second", [ALL, DeadChoice.of(indexes=[2, 3, 4])])
def test_two_concurrent_requeues_with_choices_that_overlap_run_each_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, second: DeadChoice, steps: int
):
    """The second caller runs between any two steps of the first one."""
    monkeypatch.setattr(dead_module, "CALL", 2)
    request = ended(queue, numbered(5))
    left = steps

    def interrupt(_: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            with contextlib.suppress(DeadNotFound, RequestExists):
                queue.driver.run(requeue_dead("r1", second))

    with contextlib.suppress(DeadNotFound, RequestExists):
        drive(queue.driver, THREE, interrupt)
    queue.driver.run(requeue_dead("r1"))
    assert sorted(work_off(queue.driver)) == numbered(5)
    assert list(request.dead()) == []


def others_of(lane: Lane) -> list[str]:
    """Returns the ids of all requests except r1."""
    return [key.decode()[5:-1] for key in lane.client.keys("req:*") if key != b"req:{r1}"]


def test_a_submission_that_was_cut_off_is_finished_by_any_other(queue: Queue, lane: Lane):
    request = ended(queue, BIG)
    cut_before(lane.driver, "append", 2)
    seen = work_off(lane.driver)
    assert 0 < len(seen) < 5
    assert len(list(request.dead())) == 5
    with pytest.raises(DeadNotFound):
        lane.run(requeue_dead("r1", DeadChoice.of(indexes=[4])))
    assert sorted(seen + work_off(lane.driver)) == BIG
    (new_id,) = others_of(lane)
    assert lane.run(requeue_dead("r1")) == (new_id, 5)
    assert list(request.dead()) == []


def test_what_a_cancelled_request_settled_does_not_run_again(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dead_module, "CALL", 2)
    request = ended(queue, numbered(7))
    cut_before(lane.driver, "drop_dead", 2)
    (new_id,) = others_of(lane)
    held = next_slice(lane.driver, count=2)
    queue.request(new_id).cancel()
    with pytest.raises(RequestEnded, match="is being cancelled"):
        request.requeue_dead()
    settle(lane.driver, held)
    cut_before(lane.driver, "drop_dead", 2)
    again, count = lane.run(requeue_dead("r1"))
    assert (again != new_id, count) == (True, 3)
    assert sorted(work_off(lane.driver)) == numbered(5)[2:]
    assert list(request.dead()) == []


def test_an_open_one_that_was_cancelled_keeps_none_from_running(queue: Queue, lane: Lane):
    """Its submission was cut off, and the auditor abandoned it."""
    request = ended(queue, BIG)
    cut_before(lane.driver, "append", 2)
    seen = work_off(lane.driver)
    (new_id,) = others_of(lane)
    assert queue.request(new_id).cancel("abandoned")
    again, count = lane.run(requeue_dead("r1"))
    assert (again != new_id, count) == (True, 5 - len(seen))
    assert sorted(seen + work_off(lane.driver)) == BIG
    assert list(request.dead()) == []


def test_a_full_redis_takes_back_nothing_that_may_have_run(queue: Queue, lane: Lane):
    """The submission of the new request stays open for a repeat."""
    ended(queue, BIG)
    operation = requeue_dead("r1")
    step = operation.send(None)
    while script_of(step) != "append":
        step = operation.send(None if isinstance(step, SingleServer) else lane.run(once(step)))
    seen = work_off(lane.driver)
    with pytest.raises(RedisFull):
        operation.throw(RedisFull("full"))
    assert [queue.request(one).state() for one in others_of(lane)] == ["active"]
    assert lane.run(requeue_dead("r1"))[1] == 5
    assert sorted(seen + work_off(lane.driver)) == BIG


# ------------------------------------------------------------------ lost replies


def twice(driver: SyncDriver, choice: DeadChoice) -> tuple[str, int]:
    """Requeues, and sends every step twice, because the first reply is lost."""
    lost = []

    def before(step: Any) -> None:
        if not isinstance(step, (SingleServer, NextChunk)):
            lost.append(driver.run(once(step)))

    return drive(driver, choice, before)


def test_lost_replies_after_the_end_change_no_answer(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dead_module, "CALL", 2)
    ended(queue, numbered(5))
    new_id, count = twice(queue.driver, ALL)
    assert (new_id != "r1", count) == (True, 5)
    assert queue.driver.run(requeue_dead("r1")) == (new_id, 5)
    assert sorted(work_off(queue.driver)) == numbered(5)


def test_lost_replies_before_the_end_change_no_answer(queue: Queue):
    request, held = running(queue)
    assert twice(queue.driver, ALL) == ("r1", 1)
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

    assert drive(queue.driver, ALL, before) == ("r1", 1)
