"""Tests a request that takes each key once, also if its producer dies or repeats."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import (
    Change,
    InvalidArgument,
    RedisUnreachable,
    RequestExists,
    RequestLost,
    content_id,
)
from fairlane.operations.admission import Admission
from fairlane.operations.create import (
    Created,
    Digest,
    NewRequest,
    create_alone,
    enqueue_calls,
    submit_call,
)
from fairlane.operations.intents import Intent
from fairlane.operations.submit import submit
from fairlane.options import Policy
from fairlane.protocol import keys
from tests.operations.create.test_alone import refused, way_of
from tests.support.both_faces import both_faces
from tests.support.operations.lost_replies import ON_SINGLE, Forgetful
from tests.support.operations.stepping import apart
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import HOUR, cut, dump, once, work_off
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane import Queue, Request
    from fairlane.drivers.sync import SyncDriver
    from tests.support.scripts.requests import Lane

POLICY = Policy(distinct=True)
CHUNKS = [[b"a", b"b", b"a"], [b"b"], [b"c", b"a", b"d"]]
KEPT = [b"a", b"b", b"c", b"d"]


def initial(body: bytes) -> bytes:
    return body[:1]


def bodies_of(request: Request) -> list[bytes | None]:
    return [result.body for result in request.results(timeout=PATIENCE_S)]


def counts(request: Request) -> tuple[int, int]:
    """Returns how many sub-requests it has, and how many bodies were left out."""
    progress = request.progress()
    return progress.total, progress.left_out


# ------------------------------------------------------------------ in one call


def test_repeats_are_left_out_and_the_rest_stays_in_order(queue: Queue):
    bodies = ["7", '{"meta": {"id": "7"}}', "8", "7", "a", "a"]
    request = queue.submit_request(bodies, distinct=True)
    assert request.total == 3
    assert counts(request) == (3, 3)
    work_off(queue.driver)
    assert bodies_of(request) == [b"done 7", b"done 8", b"done a"]


def test_a_function_chooses_what_makes_two_the_same(queue: Queue):
    request = queue.submit_request(["a1", "a2", "b1"], distinct=initial)
    assert counts(request) == (2, 1)


def test_without_it_every_body_counts(queue: Queue):
    assert counts(queue.submit_request(["a", "a"])) == (2, 0)
    assert counts(queue.submit_request(["a", "a"], distinct=False)) == (2, 0)


def test_repeats_in_later_chunks_are_left_out(queue: Queue, redis_client: redis.Redis):
    request = queue.submit_request((str(n % 700) for n in range(2_500)), distinct=True)
    assert request.total == 700
    assert counts(request) == (700, 1_800)
    assert redis_client.exists(keys.unique_ids(request.id)) == 0
    work_off(queue.driver)
    assert request.wait(5) == "done"
    assert [result.index for result in request.results()] == list(range(700))


def test_a_repeat_of_the_submission_finds_the_same(queue: Queue):
    for _ in range(2):
        request = queue.submit_request(["a", "b", "a"], id="same", distinct=True)
        assert (request.total, counts(request)) == (2, (2, 1))
    with pytest.raises(RequestExists):
        queue.submit_request(["a", "b", "a"], id="same")


def test_each_of_many_requests_is_distinct_in_itself(queue: Queue):
    made = queue.submit_many([["a", "a"], ["a"], [str(n % 9) for n in range(1_500)]], distinct=True)
    assert [request.total for request in made] == [1, 1, 9]
    assert [counts(request) for request in made] == [(1, 1), (1, 0), (9, 1_491)]


def test_chunks_of_the_callers_are_one_request(queue: Queue):
    request = queue.submit_chunks([["a", "b"], ["b", "c"]], distinct=True)
    assert counts(request) == (3, 1)


@ON_SINGLE
def test_a_request_without_it_pays_nothing(queue: Queue, redis_client: redis.Redis):
    redis_client.config_resetstat()
    queue.submit_request(map(str, range(2_500)))
    stats: Any = redis_client.info("commandstats")
    assert not {f"cmdstat_{name}" for name in ("sadd", "smismember", "srem", "pexpire")} & {*stats}
    new = NewRequest("r1", Policy(), Digest(Policy()), [])
    new.begin([b"a", b"b"])
    (call,) = enqueue_calls([(new, Intent(1, "0"))])
    assert (len(call.keys), call.args[-3:]) == (10, ["", b"a", b"b"])
    assert submit_call([new]).args[-3:] == [b"2", b"a", b"b"]


# ------------------------------------------------------------------ an open request


@both_faces
def test_an_addition_is_left_out_if_the_key_was_added_before(queue: Queue):
    with queue.open(distinct=initial) as request:
        assert [request.add("a1"), request.add("a2"), request.add("b1")] == [0, None, 1]
        assert request.add_many(["b2", "c1", "c2"]) == 3
        assert (request.added, request.left_out) == (6, 3)
    assert request.total == 3
    assert counts(request) == (3, 3)
    work_off(queue.driver)
    assert bodies_of(request) == [b"done a1", b"done b1", b"done c1"]


@both_faces
def test_a_producer_that_died_continues_behind_what_it_sent(queue: Queue):
    """`added` counts what was left out, too."""
    lines = [f"line {n % 7}" for n in range(30)]
    queue.open(id="resumed", distinct=True).add_many(lines[:11])  # and then it dies
    with queue.open(id="resumed", distinct=True) as request:
        assert (request.added, request.left_out) == (11, 4)
        request.add_many(lines[request.added :])
        assert (request.added, request.left_out) == (30, 23)
    again = queue.open(id="resumed", distinct=True)
    assert (again.added, again.seal()) == (30, 7)


def test_what_is_withdrawn_leaves_no_ids(queue: Queue, redis_client: redis.Redis):
    with contextlib.suppress(ZeroDivisionError), queue.open(id="gone", distinct=True) as request:
        request.add("a")
        raise ZeroDivisionError
    assert redis_client.exists(keys.unique_ids("gone")) == 0


def test_an_addition_after_the_ids_are_gone_is_refused(queue: Queue, redis_client: redis.Redis):
    request = queue.open(id="late", distinct=True)
    request.add("a")
    redis_client.delete(keys.unique_ids("late"))
    with pytest.raises(RequestLost, match="the ids that kept repeats out are gone"):
        request.add("b")
    assert request.seal() == 1


def test_a_deleted_request_frees_its_ids(queue: Queue, redis_client: redis.Redis):
    request = queue.open(id="freed", distinct=True)
    request.add("a")
    request.cancel()
    assert redis_client.exists(keys.unique_ids("freed")) == 1
    queue.change(queue.select(Change.delete(), ["freed"]))
    assert redis_client.exists(keys.unique_ids("freed")) == 0
    again = queue.open(id="freed", distinct=True)
    assert again.add("a") == 0


# ------------------------------------------------------------------ bad input


@for_each("distinct", ["yes", 1, None, b"xid"])
def test_what_is_no_function_is_refused(queue: Queue, redis_client: redis.Redis, distinct: Any):
    with pytest.raises(InvalidArgument, match="give True, or a function of a body"):
        queue.submit_request(["a"], distinct=distinct)
    assert redis_client.dbsize() == 0


def test_a_key_that_is_no_text_is_refused_and_nothing_is_left(
    queue: Queue, redis_client: redis.Redis
):
    number: Any = len
    for submission in (
        lambda: queue.submit_request(["a"], distinct=number),
        lambda: queue.submit_many([["a"], ["b"]], distinct=number),
    ):
        with pytest.raises(InvalidArgument, match="the key of a sub-request is an int"):
            submission()
    assert redis_client.dbsize() == 0
    with queue.open(distinct=number) as request:
        with pytest.raises(InvalidArgument, match="the key of a sub-request is an int"):
            request.add("a")
        assert request.added == 0


def test_an_error_of_the_function_withdraws_the_request(queue: Queue, redis_client: redis.Redis):
    def key(body: bytes) -> bytes:
        return b"%d" % (1 // (1_500 - int(body)))

    with pytest.raises(ZeroDivisionError):
        queue.submit_request(map(str, range(2_000)), id="failed", distinct=key)
    assert redis_client.hget(keys.request_hash("failed"), "state") == b"abandoned"
    assert redis_client.exists(keys.unique_ids("failed")) == 0


def test_the_content_has_another_id_if_it_is_distinct():
    assert content_id(["a"]) == content_id(["a"], distinct=False)
    assert (
        content_id(["a"]) != content_id(["a"], distinct=True) == content_id(["a"], distinct=initial)
    )


# ------------------------------------------------------------------ crashes and lost replies


def cuts(lane: Lane, *, across: bool) -> Iterator[int]:
    for after in itertools.count():
        lane.client.flushall()
        if cut(lane.driver, submit("r1", POLICY), CHUNKS, after, across=across):
            assert after > 8
            return
        yield after


@for_each("across", [False, True])
def test_a_submission_cut_off_anywhere_is_resumed_by_the_next(lane: Lane, *, across: bool):
    for _ in cuts(lane, across=across):
        assert lane.run(submit("r1", POLICY), iter(CHUNKS)) == 4
        assert (lane.number("total"), lane.hash()["left_out"]) == (4, "3")
        assert sorted(work_off(lane.driver, count=1)) == KEPT
        assert lane.hash()["state"] == "done"
        assert lane.client.exists(keys.unique_ids("r1")) == 0


def submits(driver: Any) -> None:
    assert driver.run(submit("r1", POLICY), iter(CHUNKS)) == 4


def submits_in_three_steps(driver: Any) -> None:
    assert driver.run(apart(submit("r1", POLICY)), iter(CHUNKS)) == 4


def breaks_off(driver: Any) -> None:
    def source() -> Iterator[list[bytes]]:
        yield from CHUNKS
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        driver.run(submit("r1", POLICY), source())


@ON_SINGLE
@pytest.mark.parametrize("scenario", [submits, submits_in_three_steps, breaks_off])
def test_a_lost_reply_changes_nothing(
    driver: SyncDriver, redis_client: Any, scenario: Callable[[Any], None]
):
    expected: list[Any] = []
    for lose in range(-1, 30):
        redis_client.flushall()
        scenario(Forgetful(driver, redis_client, lose))
        left = sorted(key for key in dump(redis_client) if b"{r1}" in key)
        counted = redis_client.hget(keys.request_hash("r1"), "left_out")
        expected = expected or [left, counted]
        assert [left, counted] == expected, f"reply {lose or 'every one'} was lost"


def test_a_repeat_of_an_addition_whose_reply_was_lost_leaves_nothing_out(queue: Queue):
    """What the repeat added itself is no repetition."""
    request = queue.open(id="lost", distinct=True)
    request.add("a")
    chunk = [b"a", b"b", b"c", b"b"]
    own = request._submission.add(chunk)
    queue.driver.run(once(own.send(None)))
    with contextlib.suppress(RedisUnreachable):
        own.throw(RedisUnreachable("no answer"))
    assert (request.added, request.left_out) == (1, 0)
    assert request.add_many(chunk) == 3
    assert (request.added, request.left_out) == (5, 2)
    assert request.seal() == 3


def test_what_was_written_though_its_reply_was_lost_has_its_counts_on_a_full_redis(lane: Lane):
    new = NewRequest("r1", POLICY, Digest(POLICY), [], open_ms=HOUR)
    new.begin([b"a", b"a", b"b"])
    room = Admission("r1", "req", 0.0)
    operation = create_alone(new, room, None)
    refused(lane.driver, operation, way_of(lane.driver), is_lost=True)
    assert new.created == Created(1, new.digest.hex, True, 2, left_out=1)
