"""Tests an id with several lives and producers: which one may continue, restart or withdraw."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio, settings
from fairlane.errors import QueueFull, RequestEnded, RequestExists
from fairlane.operations import admission, lease
from fairlane.operations.submit import submit
from fairlane.operations.tokens import drop_active
from fairlane.operations.workers import look_after, look_at
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, NextChunk
from tests.support.operations.stepping import apart, script_of
from tests.support.operations.upkeep import server_ms
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import (
    cut,
    next_slice,
    numbered,
    once,
    settle,
    take_slice,
    work_off,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

    Way = Callable[[Queue], Any]

THREE = [[b"a", b"b"], [b"c"], [b"d", b"e"]]
BODIES = [b"a", b"b", b"c", b"d", b"e"]
OTHER = [[b"x"], [b"y"], [b"z"]]


class Broke(Exception):
    """Raised by a source of bodies."""


def is_listed(lane: Lane) -> bool:
    """Returns whether `active` has r1."""
    return lane.client.zscore(keys.active("req"), "r1") is not None


def log(queue: Queue) -> list[str]:
    """Returns the states in the completion log."""
    return [end.state for end in queue.completions("0", follow=False)]


def leave_open(driver: SyncDriver, chunks: list[list[bytes]] | None = None) -> None:
    """Leaves a request open: its producer dies between its last append and the seal."""
    operation, source = submit("r1", Policy()), iter(chunks or THREE)
    step = operation.send(None)
    while script_of(step) != "seal":
        reply = next(source, None) if isinstance(step, NextChunk) else driver.run(once(step))
        step = operation.send(reply)
    operation.close()


def look(lane: Lane) -> None:
    """Checks r1 as the auditor, when its open time is over."""
    lane.client.hset(lane.names[2], "open_until", 1)
    lane.client.zadd(keys.active("req"), {"r1": 1})
    lane.driver.run(look_after("req"))


def abandon(lane: Lane) -> None:
    """Abandons r1: its producer died, and the auditor has cancelled it."""
    leave_open(lane.driver)
    assert (lane.number("chunks"), lane.number("open")) == (3, 1)
    look(lane)
    assert (lane.hash()["state"], lane.hash()["reason"]) == ("cancelled", "abandoned")


def by_submit(queue: Queue) -> Any:
    return queue.driver.run(submit("r1", Policy()), iter(THREE))


def in_three_steps(queue: Queue) -> Any:
    return queue.driver.run(apart(submit("r1", Policy())), iter(THREE))


def by_submit_many(queue: Queue) -> Any:
    return queue.submit_many([BODIES], ids=["r1"])[0].progress().total


def by_asyncio(queue: Queue) -> Any:
    async def anew() -> int | None:
        async with aio.Queue.from_url(queue.driver.url) as other:
            return (await other.submit_request(BODIES, id="r1")).total

    return asyncio.run(anew())


every_way = pytest.mark.parametrize("way", [by_submit, in_three_steps, by_submit_many, by_asyncio])


# ------------------------------------------------------------------ an abandoned request


@every_way
def test_an_abandoned_request_is_submitted_anew(queue: Queue, lane: Lane, way: Way):
    abandon(lane)
    assert way(queue) == 5
    assert (lane.hash()["state"], lane.number("total"), lane.number("open")) == ("active", 5, 0)
    assert lane.is_whole()
    assert is_listed(lane)
    assert sorted(work_off(queue.driver, count=1)) == BODIES
    assert log(queue) == ["cancelled", "done"]
    assert lane.client.zcard(keys.active("req")) == 0


def test_an_abandoned_request_makes_room_for_other_content(queue: Queue, lane: Lane):
    """Options may differ, too: nothing of the first life was acknowledged."""
    abandon(lane)
    assert queue.submit_request([b"x"], id="r1", limit=7).progress().limit == 7
    assert work_off(queue.driver) == [b"x"]


def test_a_new_life_has_no_results_of_the_former(queue: Queue, lane: Lane):
    leave_open(queue.driver)
    held = next_slice(queue.driver, count=1)
    settle(queue.driver, held)
    look(lane)
    assert lane.number("done") == 1
    by_submit(queue)
    assert work_off(queue.driver, count=1) == BODIES
    assert [result.body for result in queue.request("r1").results()] == [
        b"done " + body for body in BODIES
    ]


def test_fences_grow_over_the_lives_of_an_id(queue: Queue, lane: Lane):
    """A late worker of the former life settles nothing of the new one."""
    leave_open(queue.driver)
    held = next_slice(queue.driver, count=1)
    lane.client.zadd(lane.names[4], {held.k: 1})
    look(lane)
    by_submit(queue)
    newer = next_slice(queue.driver, count=1)
    assert int(newer.fence) > int(held.fence)
    late = lease.complete(held, [held.entries[0][0]], [b"0:d:1:0:0", b"late"], [], keep=False)
    assert queue.driver.run(once(late)) == [b"lost"]
    assert settle(queue.driver, newer) == b"ok"
    assert lane.number("done") == 1


def test_the_former_ending_is_logged_before_the_new_life_begins(queue: Queue, lane: Lane):
    """The auditor may have died before it logged the end."""
    leave_open(queue.driver)
    lane.client.hset(lane.names[2], "open_until", 1)
    lane.request("reap", queue="req", worker="", started="", k="", fence="", how="", now="")
    assert log(queue) == []
    for steps in range(1, 30):
        if cut(queue.driver, apart(submit("r1", Policy())), THREE, steps):
            break
        assert lane.hash()["state"] == "cancelled" or log(queue) == ["cancelled"]
    assert log(queue) == ["cancelled"]
    assert is_listed(lane)
    assert sorted(work_off(queue.driver)) == BODIES


def test_a_new_life_needs_room_in_its_queue(queue: Queue, lane: Lane):
    """The former entry does not count as a repeat."""
    abandon(lane)
    queue.submit_request([b"a"], id="r2")
    queue.driver.run(admission.set_max_waiting("req", 1))
    with pytest.raises(QueueFull):
        queue.submit_request([b"x", b"y"], id="r1")
    assert lane.hash()["state"] == "cancelled"


def test_while_a_slice_of_an_abandoned_request_is_held_it_is_refused(queue: Queue, lane: Lane):
    leave_open(queue.driver)
    held = next_slice(queue.driver, count=1)
    look(lane)
    with pytest.raises(RequestEnded, match=r"is being cancelled \(abandoned\)"):
        by_submit(queue)
    settle(queue.driver, held)
    assert by_submit(queue) == 5


def test_a_producer_that_was_abandoned_in_the_middle_gets_an_error(queue: Queue, lane: Lane):
    """This holds also while a slice is leased: nothing it still sends would run."""
    held: list[Any] = []

    def slow() -> Iterator[list[bytes]]:
        yield from THREE[:2]
        held.append(take_slice(queue.driver, count=1))
        look(lane)
        yield THREE[2]

    with pytest.raises(RequestEnded, match=r"is being cancelled \(abandoned\)"):
        queue.driver.run(submit("r1", Policy()), slow())
    settle(queue.driver, held[0])
    assert lane.hash()["state"] == "cancelled"


# ------------------------------------------------------------------ a cancelled request


@every_way
@pytest.mark.parametrize("reason", ["changed my mind", "abandoned"])
def test_a_request_that_a_person_cancelled_stays_cancelled(
    queue: Queue, lane: Lane, way: Way, reason: str
):
    way(queue)
    lane.cancel(reason)
    for _ in range(2):
        with pytest.raises(RequestEnded, match=rf"r1 was cancelled \({reason}\)"):
            way(queue)
    assert lane.hash()["state"] == "cancelled"
    assert log(queue) == ["cancelled"]


@for_each("is_repeat", [True, False])
def test_a_request_cancelled_before_its_seal_is_refused(queue: Queue, lane: Lane, is_repeat: bool):
    def cancelled_at_the_end() -> Iterator[list[bytes]]:
        yield from THREE
        lane.cancel("enough")

    if is_repeat:
        leave_open(queue.driver)
        lane.cancel("enough")
    with pytest.raises(RequestEnded, match="enough"):
        lane.run(submit("r1", Policy()), iter(THREE) if is_repeat else cancelled_at_the_end())


# ------------------------------------------------------------------ two producers


def failing_after(chunks: list[list[bytes]], act: Callable[[], Any]) -> Iterator[list[bytes]]:
    """Yields chunks, then runs what another producer does, then raises an error."""
    yield from chunks
    act()
    raise Broke


def test_a_producer_that_fails_leaves_what_another_one_has_sealed(queue: Queue, lane: Lane):
    """A was acknowledged while the source of B failed."""
    acted: list[int] = []
    for steps in range(1, 12):
        lane.client.flushall()
        acted.clear()
        failing = acting(submit("r1", Policy()), steps, lambda: acted.append(by_submit(queue)))
        with pytest.raises(Broke):
            queue.driver.run(failing, failing_after(THREE, int))
        if acted:
            assert (lane.hash()["state"], lane.number("open")) == ("active", 0)
            assert is_listed(lane)
            assert sorted(work_off(queue.driver)) == BODIES
            assert log(queue) == ["done"]
    assert not acted  # the last turn had no such step


def acting(operation: Any, steps: int, act: Callable[[], Any]) -> Any:
    """Runs the operation; before its n-th step since its source failed, another producer acts."""
    reply: Any = None
    error: BaseException | None = None
    left = -1
    while True:
        try:
            step = operation.send(reply) if error is None else operation.throw(error)
        except StopIteration as end:
            return end.value
        reply = error = None
        left -= 1
        if left == 0:
            act()
        try:
            reply = yield step
        except Broke as failure:
            error, left = failure, steps


def test_a_producer_that_fails_leaves_what_another_one_brought(queue: Queue, lane: Lane):
    with pytest.raises(Broke):
        queue.driver.run(
            submit("r1", Policy()), failing_after(THREE[:2], lambda: leave_open(queue.driver))
        )
    assert (lane.number("chunks"), lane.number("open")) == (3, 1)
    assert by_submit(queue) == 5
    assert sorted(work_off(queue.driver)) == BODIES


def test_taking_back_twice_leaves_the_next_life(queue: Queue, lane: Lane):
    """The reply was lost, and another producer submitted the same in between."""
    lives: list[int] = []

    def twice(operation: Any) -> Any:
        reply: Any = None
        error: BaseException | None = None
        while True:
            step = operation.send(reply) if error is None else operation.throw(error)
            reply = error = None
            try:
                reply = yield step
            except Broke as failure:
                error = failure
                continue
            is_unlink = isinstance(step, Command) and step.args[0] == b"UNLINK"
            if not lives and (is_unlink or script_of(step) == "discard"):
                assert "total" not in lane.hash(), reply
                leave_open(queue.driver)
                lives.append(lane.number("born"))
                reply = yield step

    with pytest.raises(Broke):
        queue.driver.run(twice(submit("r1", Policy())), failing_after(THREE, int))
    assert lives == [lane.number("born")]
    assert is_listed(lane)
    assert by_submit(queue) == 5
    assert sorted(work_off(queue.driver)) == BODIES


def test_a_take_back_cut_off_anywhere_is_no_loss(queue: Queue, lane: Lane):
    for steps in range(1, 30):
        lane.client.flushall()
        source = failing_after(THREE[:2], int)
        if cut_off_failing(lane.driver, source, steps):
            break
        for name, score in lane.client.zrange(keys.active("req"), 0, -1, withscores=True):
            lane.client.zadd(keys.active("req"), {name: 1 + score % 1})
        lane.run(look_after("req"))
        assert log(queue) == []
    else:
        raise AssertionError("it does not end")


def cut_off_failing(driver: SyncDriver, source: Iterator[list[bytes]], steps: int) -> bool:
    """Runs so many steps of a submission after its source failed; True if it had ended."""
    operation = apart(submit("r1", Policy()))
    reply: Any = None
    error: BaseException | None = None
    left = -1
    while left != 0:
        try:
            step = operation.send(reply) if error is None else operation.throw(error)
        except Broke:
            return True
        reply = error = None
        if type(step).__name__ != "NextChunk":
            reply = driver.run(once(step))
        else:
            try:
                reply = next(source, None)
            except Broke as failure:
                error, left = failure, steps + 1
        left -= 1
    operation.close()
    return False


def test_a_late_chunk_of_a_former_life_joins_no_other_content(queue: Queue, lane: Lane):
    """Its producer was stopped for long; the id has begun a new life with other content."""

    def stopped() -> Iterator[list[bytes]]:
        yield from THREE[:2]
        look(lane)
        leave_open(queue.driver, OTHER[:2])
        assert (lane.number("chunks"), lane.number("open")) == (2, 1)
        yield THREE[2]

    with pytest.raises(RequestExists):
        queue.driver.run(submit("r1", Policy()), stopped())
    assert lane.number("chunks") == 2
    assert queue.driver.run(submit("r1", Policy()), iter(OTHER)) == 3
    assert sorted(work_off(queue.driver)) == [b"x", b"y", b"z"]


def test_an_entry_that_an_auditor_gave_up_takes_no_new_life_along(queue: Queue, lane: Lane):
    """The auditor checked the former life, and drops its entry late."""
    abandon(lane)
    by_submit(queue)
    for score in ("1", "1.5"):
        queue.driver.run(once(drop_active("req", "r1", score)))
    assert is_listed(lane)


def test_an_entry_that_an_auditor_gave_up_takes_its_intent_along(lane: Lane):
    """Two intents within a millisecond are equal, so it may have marked that of the new life."""
    lane.now = server_ms(lane.client)
    intent = lane.now + settings.INTENT_GRACE_MS
    held = lane.take(lane.start(2, open_ms=60_000, limit=1, lease_ms=3_000)[0])
    lane.client.hset(lane.names[2], "open_until", 1)
    lane.client.zadd(keys.active("req"), {"r1": intent})
    assert lane.run(look_at("req", "r1", f"{intent}", lane.now))
    lane.now = server_ms(lane.client)
    born = lane.complete(held)[1][1]
    mark = lane.client.zscore(keys.active("req"), "r1")
    auditor = look_at("req", "r1", f"{mark:.1f}", lane.now)
    advance(lane.driver, auditor, auditor.send(None), iter(()), "drop_active")
    assert mark % 1 == 0.5
    assert lane.enqueue(2, intent=intent, over=born)[0] == b"late"


def test_numbered_bodies_of_many_requests_one_of_them_cancelled(queue: Queue, lane: Lane):
    queue.submit_request(numbered(2), id="r1")
    lane.cancel("enough")
    with pytest.raises(RequestEnded, match="r1 was cancelled"):
        queue.submit_many([[b"x"], numbered(2), [b"y"]], ids=["r0", "r1", "r2"])
    assert sorted(work_off(queue.driver)) == [b"x", b"y"]


def advance(
    driver: SyncDriver, operation: Any, step: Any, chunks: Iterator[list[bytes]], script: str
) -> Any:
    """Runs an operation until it is about to call a script; "" = to its end."""
    with contextlib.suppress(StopIteration):
        while script_of(step) != script or not script:
            reply = next(chunks, None) if isinstance(step, NextChunk) else driver.run(once(step))
            step = operation.send(reply)
    return step


def test_an_auditor_that_looked_at_a_former_life_leaves_the_place_of_the_next(
    queue: Queue, lane: Lane
):
    """The auditor read the intent of the new life, and removes the entry when that has begun."""
    abandon(lane)
    producer, chunks = apart(submit("r1", Policy())), iter(THREE)
    found = advance(lane.driver, producer, producer.send(None), chunks, "enqueue")
    following = producer.send(lane.run(once(found)))
    begins = advance(lane.driver, producer, following, chunks, "enqueue")
    score = lane.client.zscore(keys.active("req"), "r1")
    auditor = look_at("req", "r1", f"{score:.0f}", lane.now)
    drops = advance(lane.driver, auditor, auditor.send(None), iter(()), "drop_active")
    advance(lane.driver, producer, begins, chunks, "")
    advance(lane.driver, auditor, drops, iter(()), "")
    assert (lane.hash()["state"], lane.number("open")) == ("active", 0)
    assert is_listed(lane)


def test_a_take_back_leaves_the_place_of_one_that_was_announced_before(lane: Lane):
    """The other producer's request is created between the discard and the end of the entry."""
    broken = apart(submit("r1", Policy()))
    step = advance(lane.driver, broken, broken.send(None), iter(THREE), "append")
    while not isinstance(step, NextChunk):
        step = broken.send(lane.run(once(step)))
    other, chunks = apart(submit("r1", Policy())), iter(THREE)
    begins = advance(lane.driver, other, other.send(None), chunks, "enqueue")
    drops = advance(lane.driver, broken, broken.throw(Broke()), iter(()), "drop_active")
    advance(lane.driver, other, begins, chunks, "")
    with pytest.raises(Broke):
        advance(lane.driver, broken, drops, iter(()), "")
    assert (lane.hash()["state"], lane.number("open")) == ("active", 0)
    assert is_listed(lane)
