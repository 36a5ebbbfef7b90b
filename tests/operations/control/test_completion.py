"""Tests waiting for the end, the completion log, cancelling, and progress."""

from __future__ import annotations

import contextlib
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import DataLost, InvalidArgument, RequestLost, RequestNotFound, WaitTimeout
from fairlane.operations import request_state
from fairlane.operations.completion import wait
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, Message, Subscribe
from tests.support.both_faces import both_faces
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import (
    MINUTE,
    listeners,
    next_slice,
    numbered,
    publish,
    settle,
    work_off,
)
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane


@contextlib.contextmanager
def waiting(queue: Queue, lane: Lane) -> Iterator[Callable[[], Any]]:
    """Waits for r1 in a thread that has subscribed; the yielded call returns its outcome."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(queue.request("r1").wait(PATIENCE_S))
        except Exception as error:  # noqa: BLE001  the test compares it
            got.append(error)

    lane.client.config_resetstat()

    def outcome() -> Any:
        thread.join(20)
        assert not thread.is_alive()
        return got[0]

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: is_waiting(lane), why="it has subscribed and read the state")
    yield outcome


def is_waiting(lane: Lane) -> bool:
    """Returns True if a waiter has subscribed to the end of r1, and then read its state."""
    listens = listeners(lane.client, "done:{r1}")
    return bool(listens) and "cmdstat_hmget" in lane.client.info("commandstats")


# ------------------------------------------------------------------ wait


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_wait_for_what_has_ended_returns_immediately(queue: Queue, end: str):
    """The message was published before the subscription."""
    queue.submit_request(numbered(3), id="r1")
    queue.request("r1").cancel() if end == "cancelled" else work_off(queue.driver)
    assert queue.request("r1").wait() == end


@pytest.mark.parametrize("is_early", [False, True], ids=["", "a message that is not the end"])
def test_wait_returns_when_the_request_ends(queue: Queue, lane: Lane, is_early: bool):
    """The state decides, not the message."""
    queue.submit_request(numbered(3), id="r1")
    with waiting(queue, lane) as outcome:
        if is_early:
            publish(lane.client, "done:{r1}", "done")
        work_off(queue.driver)
        assert outcome() == "done"


def test_wait_survives_a_broken_subscription(queue: Queue, lane: Lane):
    """The connection is killed: the waiter subscribes again and reads the state again."""
    queue.submit_request([b"a"], id="r1")
    with waiting(queue, lane) as outcome:
        lane.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        work_off(queue.driver)
        assert outcome() == "done"


def test_wait_asks_again_when_the_message_is_lost(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch
):
    """Pub/sub may lose the message, so a slow poll reads the state, too."""
    monkeypatch.setattr(settings, "POLL_S", 0.02)
    queue.submit_request([b"a"], id="r1")
    with waiting(queue, lane) as outcome:
        lane.client.hset(lane.names[2], "state", "done")
        assert outcome() == "done"
    lane.client.delete(*lane.names)


@both_faces
def test_wait_ends_when_its_own_time_is_over(queue: Queue):
    queue.submit_request([b"a"], id="r1")
    for timeout in (0, 0.02):
        with pytest.raises(WaitTimeout, match="goes on"):
            queue.request("r1").wait(timeout)
    assert queue.request("r1").state() == "active"


def test_wait_for_a_request_that_vanishes_raises_request_lost(queue: Queue, lane: Lane):
    """A failover lost the slot."""
    queue.submit_request([b"a"], id="r1")
    with waiting(queue, lane) as outcome:
        lane.client.delete(*lane.names)
        publish(lane.client, "done:{r1}", "look")
        assert isinstance(outcome(), RequestLost)


def test_wait_does_not_take_a_later_request_of_that_id_for_its_own(queue: Queue, lane: Lane):
    """The id was deleted, and submitted again with other content."""
    queue.submit_request([b"a"], id="r1")
    with waiting(queue, lane) as outcome:
        lane.client.delete(*lane.names)
        lane.client.delete("{req}:active")
        queue.submit_request([b"b", b"c"], id="r1")
        publish(lane.client, "done:{r1}", "look")
        error = outcome()
    assert isinstance(error, RequestLost)
    assert str(error) == "request r1 is gone: another request has its id by now"


@for_each("ask", ["wait", "state", "progress", "cancel"])
def test_an_unknown_request_is_not_found(queue: Queue, lane: Lane, ask: str):
    lane.abandon(1)
    for name in ("r0", "r1"):
        with pytest.raises(RequestNotFound, match=name):
            getattr(queue.request(name), ask)()


def test_wait_subscribes_before_it_reads():
    """In the other order the end could fall between the two."""
    operation = wait("r1", lambda: 0.0, None)
    first = operation.send(None)
    assert isinstance(first, Subscribe)
    assert first.channel == b"done:{r1}"
    assert isinstance(operation.send(None), Command)
    assert isinstance(operation.send([b"active", b"0", b"req"]), Message)
    operation.close()


# ------------------------------------------------------------------ the log


def end_three(queue: Queue) -> None:
    for name in ("r1", "r2", "r3"):
        queue.submit_request([name], id=name)
    queue.request("r2").cancel("not wanted")
    work_off(queue.driver)


@both_faces
def test_completions_report_how_requests_ended(queue: Queue):
    end_three(queue)
    found = list(queue.completions("0", follow=False))
    assert [(c.id, c.state, c.total, c.done, c.cancelled, c.reason) for c in found] == [
        ("r2", "cancelled", 1, 0, 1, "not wanted"),
        ("r1", "done", 1, 1, 0, None),
        ("r3", "done", 1, 1, 0, None),
    ]
    assert all(c.submitted_ms <= c.ended_ms < c.submitted_ms + MINUTE for c in found)


@both_faces
def test_completions_resume_after_the_one_seen_last(queue: Queue):
    end_three(queue)
    seen, since = [], "0"
    while found := list(islice(queue.completions(since, follow=False), 1)):
        seen.append(found[0].id)
        since = found[0].log_id
    assert seen == ["r2", "r1", "r3"]


def test_completions_from_now_on_skip_what_was(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "BLOCK_MS", 10)
    end_three(queue)
    follower = queue.completions()
    assert list(queue.completions(follow=False)) == []
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(next(follower).id), daemon=True)
    thread.start()
    number = iter(range(10_000))
    wait_until(lambda: queue.submit_request([], id=f"new{next(number)}").id and got)
    thread.join(20)
    assert got[0].startswith("new")


def test_completions_of_an_unused_queue_are_none(queue: Queue):
    assert list(queue.completions("0", follow=False)) == []
    assert list(queue.completions(follow=False)) == []


@pytest.mark.parametrize("follow", [False, True])
def test_endings_that_were_trimmed_before_they_were_read_are_an_error(
    queue: Queue, lane: Lane, follow: bool
):
    """The log has a cap; the reader's position is older than the oldest entry."""
    end_three(queue)
    reader = queue.completions("0", follow=follow)
    first = next(reader).log_id
    queue.submit_request([], id="r4")
    lane.client.xtrim(keys.completed("req"), maxlen=3, approximate=False)
    with pytest.raises(DataLost, match=r"endings after .* may be missing .* begins at"):
        list(queue.completions(first, follow=follow))
    lane.client.xtrim(keys.completed("req"), maxlen=1, approximate=False)
    assert [one.id for one in (next(reader), next(reader))] == ["r1", "r3"]  # they are in its page
    with pytest.raises(DataLost, match='from "0"'):
        next(reader)
    assert [one.id for one in queue.completions("0", follow=False)] == ["r4"]


def test_an_ending_that_was_read_may_be_the_oldest_that_is_left(queue: Queue, lane: Lane):
    end_three(queue)
    _, second, third = queue.completions("0", follow=False)
    lane.client.xtrim(keys.completed("req"), maxlen=2, approximate=False)
    assert list(queue.completions(second.log_id, follow=False)) == [third]


@pytest.mark.parametrize("later", [0, 1])
def test_a_place_that_a_failover_took_back_is_an_error(queue: Queue, lane: Lane, later: int):
    """The new primary's clock is behind: its ends come before the reader's position."""
    end_three(queue)
    *_, last = queue.completions("0", follow=False)
    log = keys.completed("req")
    (_, fields), *_ = lane.client.xrevrange(log)
    ms = int(last.log_id.split("-")[0])
    lane.client.delete(log)
    for number in range(2):  # one is logged before that place, and one perhaps after it
        lane.client.xadd(log, fields, id=f"{ms - 60_000 + number * later * 120_000 + number}-0")
    for follow in (False, True):
        with pytest.raises(DataLost, match="failover"):
            next(queue.completions(last.log_id, follow=follow))
    assert len(list(queue.completions("0", follow=False))) == 2


def test_a_log_that_is_gone_is_an_error_to_its_reader(queue: Queue, lane: Lane):
    end_three(queue)
    *_, last = queue.completions("0", follow=False)
    lane.client.delete(keys.completed("req"))
    with pytest.raises(DataLost, match="the log is empty by now"):
        next(queue.completions(last.log_id, follow=False))
    assert list(queue.completions("0", follow=False)) == []


def test_completions_from_a_moment_on(queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch):
    """The moment need not be an entry; a log that was trimmed after it is an error."""
    end_three(queue)
    first, *_ = queue.completions("0", follow=False)
    before = str(int(first.log_id.split("-")[0]) - 1)
    assert len(list(queue.completions(before, follow=False))) == 3
    assert list(queue.completions(str(int(before) + MINUTE), follow=False)) == []
    lane.client.xtrim(keys.completed("req"), maxlen=2, approximate=False)
    monkeypatch.setattr(settings, "LOG_ENTRIES", 2)
    with pytest.raises(DataLost, match="may be missing"):
        list(queue.completions(before, follow=False))
    assert len(list(queue.completions("0", follow=False))) == 2


# ------------------------------------------------------------------ cancel and look


@both_faces
def test_cancel_returns_whether_the_request_has_ended(queue: Queue, lane: Lane):
    queue.submit_request(numbered(5), id="r1")
    held = next_slice(queue.driver)
    assert queue.request("r1").cancel() is False
    settle(queue.driver, held)
    assert queue.request("r1").cancel() is True
    assert queue.request("r1").cancel() is True
    assert lane.client.xlen(keys.completed("req")) == 1


def test_cancel_of_another_queues_request_is_logged_where_it_belongs(queue: Queue, lane: Lane):
    other = type(queue)(queue.driver, "other")
    other.submit_request([b"a"], id="r1")
    assert queue.request("r1").cancel() is True
    assert [c.id for c in other.completions("0", follow=False)] == ["r1"]
    assert list(queue.completions("0", follow=False)) == []


def test_progress_counts_what_is_held_done_and_left(queue: Queue):
    queue.submit_request(numbered(5), id="r1", limit=2, priority=8)
    held = next_slice(queue.driver, count=2)
    now = queue.request("r1").progress()
    assert (now.total, now.done, now.left, now.held, now.limit) == (5, 0, 5, 1, 2)
    assert (now.priority, now.queue, now.state, now.ended, now.is_open) == (
        *(8, "req", "active", False, False),
    )
    settle(queue.driver, held)
    assert queue.request("r1").progress().left == 3
    work_off(queue.driver)
    now = queue.request("r1").progress()
    assert (now.done, now.left, now.held, now.ended, now.state) == (5, 0, 0, True, "done")


def test_holders_returns_the_workers_of_a_request(queue: Queue):
    queue.submit_request(numbered(5), id="r1", limit=2)
    held = next_slice(queue.driver, count=2)
    (row,) = queue.driver.run(request_state.read_holders("r1"))
    assert (row.k, row.fence, row.owed, row.worker) == (held.k, held.fence.decode(), "2", "w:1")


@both_faces
def test_status_counts_tokens_requests_and_endings(queue: Queue):
    end_three(queue)
    queue.submit_request(numbered(5), id="r4", priority=2)
    status = queue.status()
    assert status.lanes == {2: 3}
    assert (status.delayed, status.workers, status.ended) == (0, (), 3)
    assert [now.id for now in status.requests] == ["r4"]


@for_each("name", ["", "a b", "a{b}", "x" * 129, "ü", 7, None])
def test_names_that_can_not_be_part_of_a_key_are_refused(queue: Queue, name: Any):
    """A brace would move a key to another slot."""
    with pytest.raises(InvalidArgument, match="not valid"):
        queue.request(name)
    with pytest.raises(InvalidArgument, match="not valid"):
        type(queue)(queue.driver, name)


@pytest.mark.parametrize(
    "reason", ["\u00b2", "7" * 5000, "5"], ids=["a raised two", "long", "a number"]
)
def test_progress_reads_no_number_where_there_are_words(lane: Lane, reason: str):
    lane.start(1)
    lane.cancel(reason)
    assert lane.run(request_state.progress("r1")).reason == reason
