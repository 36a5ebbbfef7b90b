"""Tests submissions in three steps, any of which may be the last one before a crash."""

from __future__ import annotations

import contextlib
import itertools
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.common.chunking import chunks
from fairlane.errors import InvalidArgument, RedisFull, RequestEnded, RequestExists, RequestLost
from fairlane.operations.create import Digest
from fairlane.operations.submit import submit
from fairlane.operations.tokens import drop_active
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import NextChunk, SingleServer
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import (
    HOUR,
    MINUTE,
    cut,
    numbered,
    once,
    settle,
    take_slice,
    work_off,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.drivers.sync import SyncDriver
    from fairlane.queue import Queue
    from tests.support.scripts.requests import Lane

THREE = [[b"a", b"b"], [b"c"], [b"d", b"e"]]


def test_one_chunk_is_one_sealed_request_with_its_tokens(queue: Queue, lane: Lane):
    queue.submit_request(["a", "b"], id="r1", priority=7, limit=9)
    assert lane.hash()["state"] == "active"
    assert (lane.number("total"), lane.number("open"), lane.number("chunks")) == (2, 0, 1)
    assert lane.client.zscore(keys.active("req"), "r1") is not None
    assert lane.client.lrange(keys.lanes("req")[7], 0, -1) == [b"r1#1.2", b"r1#0.1"]
    assert lane.is_whole()


def test_2500_lazy_bodies_are_three_chunks_and_sealed(queue: Queue, lane: Lane):
    queue.submit_request((f"body {i}" for i in range(2500)), id="r1")
    assert (lane.number("total"), lane.number("open"), lane.number("chunks")) == (2500, 0, 3)
    assert lane.is_whole()
    seen = work_off(queue.driver, count=300)
    assert sorted(seen) == sorted(b"body %d" % i for i in range(2500))
    assert lane.hash()["state"] == "done"


def test_bodies_are_pulled_as_they_are_sent(queue: Queue, lane: Lane):
    ahead = []

    def watched() -> Iterator[bytes]:
        for i in range(5000):
            if i % 500 == 499:
                stored = int(lane.hash().get("total") or 0)
                ahead.append(i + 1 - stored)
            yield b"x"

    queue.submit_request(watched(), id="r1")
    assert max(ahead) <= 2001
    queue.request("r1").cancel()


def test_a_submission_returns_how_many_sub_requests_it_has(queue: Queue):
    assert queue.submit_request((f"body {i}" for i in range(2500)), id="r1").total == 2500
    assert queue.submit_request([]).total == 0
    assert queue.request("r1").total is None


def test_groups_of_bodies_are_sent_when_they_come(queue: Queue, lane: Lane):
    written: list[int] = []

    def groups() -> Iterator[list[str]]:
        for group in (["a", "b"], [], ["c"], ["d"]):
            yield group
            written.append(int(lane.hash().get("total", 0)))

    assert queue.submit_chunks(groups(), id="r1", limit=2).total == 4
    assert (lane.number("total"), lane.number("chunks")) == (4, 3)
    assert written == [0, 0, 3, 4]


@for_each("groups", ["text", [["a"], "text"], [["a"], [1]], 5])
def test_what_is_no_group_of_bodies_is_refused(queue: Queue, groups: Any):
    with pytest.raises(InvalidArgument, match=r"bodies is|sub-request 1 is"):
        queue.submit_chunks(groups, id="r1")


def test_an_empty_request_is_done_and_logged(queue: Queue, lane: Lane):
    assert queue.submit_request([], id="r1").state() == "done"
    assert [c.id for c in queue.completions("0", follow=False)] == ["r1"]
    assert lane.client.zcard(keys.active("req")) == 0


def test_submitting_twice_is_submitting_once(queue: Queue, lane: Lane):
    for _ in range(2):
        queue.submit_request(numbered(5), id="r1")
    assert lane.number("total") == 5
    assert sorted(work_off(queue.driver)) == numbered(5)
    queue.submit_request(numbered(5), id="r1")
    assert work_off(queue.driver) == []
    assert lane.client.xlen(keys.completed("req")) == 1
    assert lane.client.zcard(keys.active("req")) == 0


@for_each(
    "other",
    [
        {"bodies": [b"a"]},
        {"bodies": [b"a", b"b", b"c"]},
        {"bodies": [b"ab", b""]},
        {"bodies": [b"b", b"a"]},
        {"priority": 6},
        {"limit": 4},
        {"attempts": 4},
        {"lease": 29},
        {"backoff": (0.001, 0.002)},
    ],
)
def test_other_content_or_options_under_one_id_are_refused(queue: Queue, lane: Lane, other: dict):
    queue.submit_request([b"a", b"b"], id="r1")
    before = {name: value for name, value in lane.dump().items() if name != b"{req}:active"}
    with pytest.raises(RequestExists, match="r1"):
        queue.submit_request(**({"bodies": [b"a", b"b"], "id": "r1"} | other))
    after = {name: value for name, value in lane.dump().items() if name != b"{req}:active"}
    assert after == before


def test_an_id_of_another_queue_is_refused_and_leaves_no_intent(queue: Queue, lane: Lane):
    """The other queue's auditor must not look after a request that is not its own."""
    other = type(queue)(queue.driver, "other")
    queue.submit_request([b"a"], id="r1")
    with pytest.raises(RequestExists):
        other.submit_request([b"a"], id="r1")
    assert lane.client.zrange(keys.active("req"), 0, -1) == [b"r1"]
    assert lane.client.zrange(keys.active("other"), 0, -1) == []


def test_other_content_in_a_later_chunk_is_refused(lane: Lane):
    lane.run(submit("r1", Policy()), iter(THREE))
    for other in ([THREE[0], [b"x"], THREE[2]], [*THREE, [b"f"]], THREE[:2], [THREE[0]]):
        with pytest.raises(RequestExists):
            lane.run(submit("r1", Policy()), iter(other))
    assert lane.number("total") == 5


@for_each("bodies", ["text", b"bytes", {"a": 1}, 7, None])
def test_what_is_no_iterable_of_bodies_is_refused(queue: Queue, lane: Lane, bodies: object):
    with pytest.raises(InvalidArgument, match="iterable of bytes or str"):
        queue.submit_request(bodies, id="r1")  # type: ignore[arg-type]
    assert lane.dump() == {}


@for_each(
    "options, says",
    [
        ({"priority": 100}, "priority"),
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"id": "a{b}"}, "id"),
        ({"id": ""}, "id"),
        ({"lease": 0.001}, "lease 0.001 s is not valid: a time from 1s to 24h is expected"),
        ({"lease": None}, "lease None is not valid: give seconds, text such as 10m, or a time"),
        ({"deadline": float("nan")}, "deadline nan is not valid"),
        ({"retain": -0.001}, "retain -0.001 s is not valid"),
        ({"backoff": (9, 1)}, "backoff 9 s..1 s ends before it begins"),
        ({"tags": [f"t{n}" for n in range(21)]}, "21 tags are too many: name at most 20"),
        (
            {"after": [f"r{n}" for n in range(101)]},
            "101 request ids are too many: name at most 100",
        ),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    queue: Queue, lane: Lane, options: dict, says: str
):
    with pytest.raises(InvalidArgument, match=says):
        queue.submit_request([b"a"], **options)
    assert lane.dump() == {}


@for_each(
    "retain_ms, later_ms",
    [(10 * MINUTE, HOUR), (6 * HOUR, 6 * HOUR), (24 * HOUR, 24 * HOUR), (72 * HOUR, 24 * HOUR)],
)
def test_a_log_marker_outlives_the_tombstone_by_its_retention_within_an_hour_and_a_day(
    queue: Queue, lane: Lane, retain_ms: int, later_ms: int
):
    queue.submit_request([], id="r1", retain=retain_ms / 1000)
    ((_, until),) = lane.client.zrange("{req}:logged", 0, -1, withscores=True)
    assert 0 <= until - lane.number("ended") - retain_ms - later_ms < MINUTE


# ------------------------------------------------------------------ producers that fail


class Broke(Exception):
    """Raised by a producer."""


def failing(after: int) -> Iterator[bytes]:
    """Yields so many bodies, then raises an error."""
    yield from numbered(after)
    raise Broke


def left_of(lane: Lane) -> list[bytes]:
    """Returns the keys of r1; its hash has at most the marker of the withdrawal."""
    return [key for key in lane.names if lane.client.exists(key)]


@for_each("after", [0, 999, 1500, 2500, 4000])
def test_a_producer_that_fails_midway_leaves_a_marker_at_most(queue: Queue, lane: Lane, after: int):
    with pytest.raises(Broke):
        queue.submit_request(failing(after), id="r1")
    assert left_of(lane) in ([], [lane.names[2]])
    assert lane.client.zcard(keys.active("req")) == 0
    assert work_off(queue.driver) == []
    assert queue.submit_request([b"a"], id="r1").state() == "active"


def test_a_producer_that_fails_while_a_slice_is_held_leaves_it_its_end(queue: Queue, lane: Lane):
    held = []

    def bodies() -> Iterator[bytes]:
        for body in failing(3500):
            if body == b"b3400":
                held.append(take_slice(queue.driver, count=10))
            yield body

    with pytest.raises(Broke):
        queue.submit_request(bodies(), id="r1")
    assert (lane.hash()["state"], lane.hash()["reason"]) == ("cancelling", "submission: Broke")
    assert held[0] is not None
    assert len(held[0].entries) == 10
    assert lane.is_whole()
    assert settle(lane.driver, held[0]) == b"ended"
    assert [end.state for end in queue.completions("0", follow=False)] == ["cancelled"]


def test_a_body_too_large_is_refused_and_named(queue: Queue, lane: Lane):
    with pytest.raises(InvalidArgument, match="sub-request 2 has 1,048,577 bytes"):
        queue.submit_request([b"a", b"b", b"x" * (2**20 + 1)], id="r1")
    assert lane.dump() == {}


def test_a_request_cancelled_while_it_is_submitted_raises_an_error(queue: Queue, lane: Lane):
    def bodies() -> Iterator[bytes]:
        yield from numbered(3500)
        queue.request("r1").cancel("enough")
        yield from numbered(1500)

    with pytest.raises(RequestEnded, match="enough"):
        queue.submit_request(bodies(), id="r1")
    assert lane.hash()["state"] == "cancelled"
    assert lane.is_whole()


def test_a_request_that_vanishes_while_it_is_submitted_is_lost(queue: Queue, lane: Lane):
    """A half request is not completed from its second half."""

    def bodies() -> Iterator[bytes]:
        yield from numbered(3500)
        lane.client.delete(*lane.names)
        yield from numbered(1500)

    with pytest.raises(RequestLost):
        queue.submit_request(bodies(), id="r1")
    assert lane.client.exists(*lane.names) == 0


# ------------------------------------------------------------------ crashes


def cuts(driver: SyncDriver, lane: Lane, across: bool) -> Iterator[int]:
    """Yields each number of steps after which a submission of THREE may be cut off."""
    for after in itertools.count():
        lane.client.flushall()
        if cut(driver, submit("r1", Policy()), THREE, after, across=across):
            assert after > 8
            return
        yield after


either_way = pytest.mark.parametrize("across", [False, True], ids=["in three steps", "in one step"])


@either_way
def test_a_submission_cut_off_anywhere_is_resumed_by_the_next(lane: Lane, across: bool):
    for _ in cuts(lane.driver, lane, across):
        assert lane.run(submit("r1", Policy()), iter(THREE)) == 5
        assert (lane.number("total"), lane.number("open")) == (5, 0)
        assert lane.is_whole()
        assert sorted(work_off(lane.driver, count=1)) == [b"a", b"b", b"c", b"d", b"e"]
        assert lane.hash()["state"] == "done"
        assert lane.client.xlen(keys.completed("req")) == 1


@either_way
def test_a_submission_cut_off_anywhere_leaves_a_trace_or_nothing(lane: Lane, across: bool):
    """Whatever has keys is in `active`: the auditor will find it."""
    for _ in cuts(lane.driver, lane, across):
        if lane.client.exists(*lane.names):
            assert lane.client.zscore(keys.active("req"), "r1") is not None
            assert lane.is_whole()


def broken_after(chunks_: int) -> Iterator[list[bytes]]:
    """Yields the first chunks of THREE, then raises an error."""
    yield from THREE[:chunks_]
    raise Broke


@for_each("again", [0, 1, 2, 3])
def test_a_resumed_submission_whose_producer_fails_leaves_nothing(lane: Lane, again: int):
    assert not cut(lane.driver, submit("r1", Policy()), THREE, 7)
    assert lane.number("chunks") == 2
    with pytest.raises(Broke):
        lane.run(submit("r1", Policy()), broken_after(again))
    gone = again > 1  # before its look-ahead was complete it had not looked at Redis
    assert len(left_of(lane)) == (1 if gone else 4)
    lane.client.flushall()


def test_resuming_a_request_that_was_cancelled_meanwhile_is_an_error(lane: Lane):
    """The error is not that the id has other content: it has the same, but has ended."""
    assert not cut(lane.driver, submit("r1", Policy()), THREE, 7)
    lane.cancel("changed my mind")
    with pytest.raises(RequestEnded, match="changed my mind"):
        lane.run(submit("r1", Policy()), iter(THREE))


@either_way
def test_a_submission_resumes_while_workers_are_at_it(lane: Lane, across: bool):
    for _ in cuts(lane.driver, lane, across):
        first = work_off(lane.driver)
        assert lane.run(submit("r1", Policy()), iter(THREE)) == 5
        assert sorted(first + work_off(lane.driver)) == [b"a", b"b", b"c", b"d", b"e"]
        assert lane.hash()["state"] == "done"


def test_a_late_producer_starts_again_with_a_newer_intent(lane: Lane):
    """The auditor abandoned it between intent and enqueue."""
    operation = submit("r1", Policy())
    assert isinstance(operation.send(None), NextChunk)
    assert isinstance(operation.send([b"a"]), NextChunk)
    assert isinstance(operation.send(None), SingleServer)
    intended = lane.run(once(operation.send(None)))  # as in a cluster
    score = intended[2]
    lane.abandon(score)
    lane.run(once(drop_active("req", "r1", str(score))))
    names: list[str] = []

    def rest() -> Any:
        reply: Any = intended
        with contextlib.suppress(StopIteration):
            while True:
                step = operation.send(reply)
                names.append(getattr(getattr(step, "script", None), "name", "batch"))
                reply = yield step

    lane.run(rest())
    assert names[:3] == ["enqueue", "intend", "enqueue"]  # and again within the same ms
    assert names[-2:] == ["enqueue", "batch"]
    assert lane.client.zscore(keys.active("req"), "r1") is not None
    assert lane.is_whole()


def test_an_intent_that_was_given_up_before_costs_a_second_try(queue: Queue, lane: Lane):
    """The auditor's mark is from a clock that was ahead: the next intent is newer."""
    seen = int(time.time() * 1000) + HOUR
    lane.abandon(seen)
    assert queue.submit_request(["a", "b"], id="r1").progress().total == 2
    assert lane.client.zscore(keys.active("req"), "r1") > seen
    assert sorted(work_off(queue.driver)) == [b"a", b"b"]
    assert lane.is_whole()


def test_a_shorter_submission_with_the_same_beginning_does_no_harm(lane: Lane):
    assert not cut(lane.driver, submit("r1", Policy()), THREE, 7)
    with pytest.raises(RequestExists):
        lane.run(submit("r1", Policy()), iter([*THREE[:1], [b"other"]]))
    assert (lane.number("open"), lane.number("chunks")) == (1, 2)
    assert lane.run(submit("r1", Policy()), iter(THREE)) == 5
    assert lane.is_whole()


def test_a_repeated_submission_does_not_keep_the_auditor_away(queue: Queue, lane: Lane):
    """The bare score may be one that the auditor has abandoned, and is about to remove."""
    queue.submit_request(["a"], id="r1")
    due = lane.client.zscore(keys.active("req"), "r1")
    for _ in range(3):
        queue.submit_request(["a"], id="r1")
    with pytest.raises(RequestExists):
        queue.submit_request(["b"], id="r1")
    assert lane.client.zscore(keys.active("req"), "r1") == due + 0.5
    given_up = queue.driver.run(once(drop_active("req", "r1", str(int(due)))))
    assert (given_up, lane.client.zscore(keys.active("req"), "r1")) == (0, due + 0.5)


def test_a_refused_repeat_leaves_the_running_request_to_its_auditor(queue: Queue, lane: Lane):
    """Redis was full: the intent is undone, and the entry of the running request stays."""
    queue.submit_request(["a" * 500_000], id="r1")
    used = lane.client.info("memory")["used_memory"]
    lane.client.config_set("maxmemory", used + 300_000)
    try:
        with contextlib.suppress(RedisFull):
            queue.submit_request(["a" * 500_000], id="r1")
    finally:
        lane.client.config_set("maxmemory", 0)
    assert lane.client.zscore(keys.active("req"), "r1") is not None


# ------------------------------------------------------------------ digest


def test_the_digest_depends_on_where_one_body_ends():
    """It includes lengths: ab + c is not a + bc; and a chunk's end matters, too."""
    policy = Policy()
    found = {
        Digest(policy).add(chunk)
        for chunk in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [])
    }
    assert len(found) == 5


def test_the_digest_is_of_bytes_that_any_language_can_write():
    """It uses netstrings of the terms, then a link for each chunk: see Digest."""
    policy = Policy(
        queue="q", limit=3, priority=7, attempts=2, backoff_ms=(5, 6), lease_ms=2_000,
        retain_ms=3_600_000, time_limit_ms=8, durable=1, deadline_ms=9, tags=("r0",),
    )  # fmt: skip
    head = b"18:fairlane request 1,1:q,28:3:7:2:5:6:2000:3600000:8:1:9,7:tags=r0,"
    first = sha256(b"%d:%b," % (len(head), head) + b"\x02\0\0\0" + b"\0\0\0\0" + b"ab").digest()[
        :16
    ]
    second = sha256(b"16:%b," % first + b"\x01\0\0\0" + b"c").hexdigest()[:32]
    digest = Digest(policy)
    assert digest.add([b"ab", b""]) == first.hex()
    assert digest.add([b"c"]) == second


def test_lazy_and_listed_bodies_make_the_same_chunks():
    """So a repeat from a list finds what a generator began."""
    assert list(chunks(iter(numbered(2500)))) == list(chunks(numbered(2500)))
