"""Tests submit_many: requests in groups, each as if it had been submitted alone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio
from fairlane.errors import InvalidArgument, QueueFull, RedisFull, RedisUnfit, RequestExists
from fairlane.operations import admission, lease, tokens
from fairlane.operations.create import GROUP
from fairlane.operations.submit import Many
from fairlane.operations.workers import look_after
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, SingleServer
from fairlane.queue import Queue
from tests.scripts.repair.test_full_and_forgotten import full
from tests.support.processes.workers import broken
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import Lane, cut, dump, numbered, once, settle, work_off
from tests.support.servers import backends
from tests.support.servers.replicas import run_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


ACTIVE, COMPLETED = keys.active("req"), keys.completed("req")
ON_SINGLE = pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
MIXED: list[list[bytes]] = [[b"a"], [], [b"b", b"c"], numbered(2500), [b"d"]]


class Broke(Exception):
    """Raised by a producer."""


def names(count: int) -> list[str]:
    return [f"r{i}" for i in range(count)]


def logged(client: Any) -> list[str]:
    """Returns the ids in the completion log."""
    return [fields[b"id"].decode() for _, fields in client.xrange(COMPLETED)]


def active(client: Any) -> list[str]:
    return sorted(name.decode() for name in client.zrange(ACTIVE, 0, -1))


def whole(queue: Queue, ids: list[str]) -> bool:
    """Checks the invariants of all requests."""
    return all(broken(queue, one) == [] for one in ids)


# ------------------------------------------------------------------ accepted requests


def test_requests_come_back_in_their_order(queue: Queue, redis_client: Any):
    made = queue.submit_many(MIXED, ids=names(5), priority=7, limit=2)
    assert [request.id for request in made] == names(5)
    seen = [request.progress() for request in made]
    assert [one.total for one in seen] == [1, 0, 2, 2500, 1]
    assert [one.state for one in seen] == ["active", "done", "active", "active", "active"]
    assert {(one.priority, one.limit) for one in seen} == {(7, 2)}
    assert active(redis_client) == ["r0", "r2", "r3", "r4"]
    assert whole(queue, names(5))
    order = list(reversed(redis_client.lrange(keys.lanes("req")[7], 0, -1)))
    first = [token.partition(b"#")[0] for token in order]
    assert first == [b"r0", b"r2", b"r2", b"r3", b"r3", b"r4"]
    assert sorted(work_off(queue.driver)) == sorted(body for bodies in MIXED for body in bodies)
    assert sorted(logged(redis_client)) == names(5)


def test_it_is_what_one_by_one_would_have_been(queue: Queue, redis_client: Any):
    options: dict[str, Any] = {
        "priority": 9, "limit": 4, "attempts": 2, "backoff": (0.005, 0.007), "lease": 2,
        "retain": 7_200, "deadline": 60, "time_limit": 0.9,
    }  # fmt: skip
    queue.submit_many([["x", b"y"], []], ids=["r0", "r1"], **options)
    lane = Lane(queue.driver, redis_client, request_id="r0")
    before = {key: value for key, value in lane.dump().items() if b"{req}" not in key}
    assert queue.submit_request([b"x", "y"], id="r0", **options).progress().total == 2
    queue.submit_request([], id="r1", **options)
    after = {key: value for key, value in lane.dump().items() if b"{req}" not in key}
    assert after == before
    assert logged(redis_client) == ["r1"]


@pytest.mark.rest
def test_ids_are_made_when_none_are_given(queue: Queue):
    made = queue.submit_many([b"x"] for _ in range(2 * GROUP + 1))
    assert len({request.id for request in made}) == 2 * GROUP + 1
    assert {len(request.id) for request in made} == {20}
    assert made[-1].state() == "active"


def test_nothing_to_submit_is_nothing(queue: Queue, redis_client: Any):
    assert queue.submit_many([]) == queue.submit_many(iter(()), ids=[]) == []
    assert redis_client.dbsize() == 0


def test_one_server_takes_a_group_in_one_round_trip_and_a_cluster_in_three(queue: Queue):
    """A full group is sent before the next request is read."""
    steps: list[str] = []
    many = Many(Policy())
    for name in names(GROUP):
        assert many.add(name, [b"x"]) is None
    group = many.add("last", [b"x"])
    assert group is not None

    def watched() -> Any:
        reply = None
        with contextlib.suppress(StopIteration):
            while True:
                step: Any = group.send(reply)
                reply = yield step
                if reply is not None:
                    steps.append(getattr(step, "script", step).__class__.__name__)

    queue.driver.run(watched())
    in_cluster = ["Script", "Batch", "Batch"]
    assert steps == (in_cluster if queue.driver.is_cluster else ["SingleServer"])
    assert len(many.submitted) == GROUP


def test_a_group_is_bounded_by_its_bytes(queue: Queue):
    many = Many(Policy())
    assert many.add("r0", [b"x" * 600_000]) is None
    full_group = many.add("r1", [b"x" * 600_000])
    assert full_group is not None
    queue.driver.run(full_group)
    assert many.submitted == ["r0"]


@pytest.mark.rest
@ON_SINGLE
def test_5000_requests_are_worked_off_and_logged_exactly_once(queue: Queue, redis_client: Any):
    count = 5_000
    bodies = numbered(count)
    made = queue.submit_many(([body] for body in bodies), ids=names(count), priority=3, limit=1)
    assert len(made) == redis_client.zcard(ACTIVE) == count
    seen = []
    while raw := queue.driver.run(once(Command(b"RPOP", keys.lanes("req")[3]))):
        token = tokens.parse(raw)
        assert token is not None
        reply, held = queue.driver.run(lease.acquire(token, "w:1", "7", 10))
        assert held is not None, reply
        seen += [body for _, (_, body) in held.entries]
        assert settle(queue.driver, held) == b"ended"
    assert seen == bodies
    assert logged(redis_client) == names(count)
    assert redis_client.zcard(ACTIVE) == 0
    size = redis_client.dbsize()
    again = queue.submit_many(([body] for body in bodies), ids=names(count), priority=3, limit=1)
    assert len(again) == count
    assert logged(redis_client) == names(count)
    assert redis_client.zcard(ACTIVE) == redis_client.llen(keys.lanes("req")[3]) == 0
    assert redis_client.dbsize() == size


def test_a_repeat_changes_nothing(queue: Queue, redis_client: Any):
    queue.submit_many(MIXED, ids=names(5))
    due = redis_client.zrange(ACTIVE, 0, -1, withscores=True)
    for _ in range(2):
        made = queue.submit_many(MIXED, ids=names(5))
        assert [request.id for request in made] == names(5)
    assert redis_client.zrange(ACTIVE, 0, -1, withscores=True) == [
        (name, score + 0.5) for name, score in due
    ]
    for name, score in due:  # an auditor that had given the bare score up takes nothing out
        assert queue.driver.run(once(tokens.drop_active("req", name, str(int(score))))) == 0
    assert active(redis_client) == sorted(name.decode() for name, _ in due)
    assert sorted(work_off(queue.driver)) == sorted(body for bodies in MIXED for body in bodies)
    queue.submit_many(MIXED, ids=names(5))
    assert sorted(logged(redis_client)) == names(5)
    assert active(redis_client) == []


# ------------------------------------------------------------------ refusals


@for_each(
    "requests, ids, says",
    [
        ([[b"a"], [b"b", 7]], None, "request 1 of the call: sub-request 1 is an int"),
        (
            [[b"a"], [b"x" * (2**20 + 1)]],
            None,
            "request 1 of the call: sub-request 0 has 1,048,577",
        ),
        ([[b"a"], b"bc"], None, "request 1 of the call: bodies is a bytes"),
        ([[b"a"], ["\ud800"]], None, "request 1 of the call: sub-request 0 is not text"),
        ([[b"a"], [b"b"]], ["r0", "a{b}"], "request id 'a{b}' is not valid"),
        ([[b"a"], [b"b"]], ["r0", "r0"], "r0 is given twice"),
        ([[b"a"], [b"b"]], ["r0"], "more requests than ids: 1 ids"),
        ([[b"a"]], ["r0", "r1"], "more ids than requests: 1 requests"),
        ([[b"a"]], "r0", "ids 'r0' is not valid"),
        (b"ab", None, "requests is a bytes"),
        ({"a": 1}, None, "requests is a dict"),
        (7, None, "requests is an int"),
    ],
)
def test_what_is_wrong_is_refused_before_its_group_is_written(
    queue: Queue, redis_client: Any, requests: Any, ids: Any, says: str
):
    with pytest.raises(InvalidArgument, match=says) as caught:
        queue.submit_many(requests, ids=ids)
    assert caught.value.submitted == ()
    assert redis_client.dbsize() == 0


@for_each("options", [{"priority": 100}, {"limit": 0}, {"max_wait": -1}])
def test_bad_options_are_refused(queue: Queue, redis_client: Any, options: dict):
    with pytest.raises(InvalidArgument):
        queue.submit_many([[b"a"]], **options)
    assert redis_client.dbsize() == 0


def test_a_generator_that_raises_in_the_middle(queue: Queue, redis_client: Any):
    def requests() -> Iterator[list[bytes]]:
        for body in numbered(GROUP + 7):
            yield [body]
        raise Broke

    with pytest.raises(Broke) as caught:
        queue.submit_many(requests(), ids=names(GROUP + 7))
    assert caught.value.__notes__ == [f"{GROUP} requests were submitted before"]
    assert active(redis_client) == sorted(names(GROUP))
    assert len(work_off(queue.driver)) == GROUP
    assert sorted(logged(redis_client)) == sorted(names(GROUP))


def test_each_request_is_yielded_when_its_group_is_in_redis(queue: Queue, redis_client: Any):
    def requests() -> Any:
        yield from ([b"a"] for _ in range(GROUP))
        yield [b"b", b"c"]
        raise KeyboardInterrupt

    submitted: list[tuple[str, int | None]] = []
    each = queue.submit_each(requests())
    with pytest.raises(KeyboardInterrupt):
        submitted.extend((request.id, request.total) for request in each)
    assert [total for _, total in submitted] == [1] * GROUP
    kept = {name.decode() for name in redis_client.zrange("{req}:active", 0, -1)}
    assert kept == {request_id for request_id, _ in submitted}


def test_each_request_may_have_its_own_limit(queue: Queue):
    many = queue.submit_many([[b"a"], [b"b"]], limit=(limit for limit in (3, 7)))
    assert [request.progress().limit for request in many] == [3, 7]


@for_each(
    "limits, why",
    [([1], "request 1 of the call: there is no limit"), ([1, 2, 3], "more limits"), ([0], "limit")],
)
def test_each_request_needs_a_valid_limit(queue: Queue, limits: list[int], why: str):
    with pytest.raises(InvalidArgument, match=why):
        queue.submit_many([[b"a"], [b"b"]], limit=limits)


def test_bodies_that_raise_in_the_middle_of_a_large_request(queue: Queue, redis_client: Any):
    def bodies() -> Iterator[bytes]:
        yield from numbered(3500)
        raise Broke

    with pytest.raises(Broke) as caught:
        queue.submit_many([[b"a"], bodies(), [b"b"]], ids=names(3))
    assert caught.value.__notes__ == ["1 requests were submitted before"]
    assert active(redis_client) == ["r0"]
    assert work_off(queue.driver) == [b"a"]


@pytest.mark.rest
def test_a_taken_id_does_not_keep_the_others_of_its_group(queue: Queue, redis_client: Any):
    queue.submit_request([b"other"], id="r1")
    requests = [[body] for body in numbered(GROUP + 1)]
    with pytest.raises(RequestExists, match="r1") as caught:
        queue.submit_many(requests, ids=names(GROUP + 1))
    assert caught.value.submitted == tuple(name for name in names(GROUP) if name != "r1")
    assert active(redis_client) == sorted(names(GROUP))
    assert whole(queue, names(GROUP))
    seen = work_off(queue.driver)
    assert sorted(seen) == sorted([*numbered(GROUP)[:1], *numbered(GROUP)[2:], b"other"])


def test_an_unreadable_key_does_not_keep_the_others_of_its_group(queue: Queue, redis_client: Any):
    redis_client.rpush("req:{r1}", "another program's")
    requests = [[body] for body in numbered(4)]
    with pytest.raises(RedisUnfit) as caught:
        queue.submit_many(requests, ids=names(4))
    assert caught.value.submitted == ("r0", "r2", "r3")
    redis_client.delete("req:{r1}")
    assert sorted(work_off(queue.driver)) == [b"b0", b"b2", b"b3"]


def test_an_id_of_another_queue_is_refused_and_leaves_no_intent(queue: Queue, redis_client: Any):
    other = type(queue)(queue.driver, "other")
    other.submit_request([b"a"], id="r0")
    with pytest.raises(RequestExists):
        queue.submit_many([[b"a"], [b"b"]], ids=["r0", "r1"])
    assert active(redis_client) == ["r1"]


# ------------------------------------------------------------------ no room


def test_a_bound_is_kept(queue: Queue, redis_client: Any):
    queue.driver.run(admission.set_max_waiting("req", 3))
    with pytest.raises(QueueFull) as caught:
        queue.submit_many([[b"a"], [b"b", b"c"], [b"d"], [b"e"]], ids=names(4))
    assert caught.value.submitted == ("r0", "r1")
    assert active(redis_client) == ["r0", "r1"]
    assert queue.driver.run(admission.read_bounds("req")).waiting == 3
    again = [[b"a"], [b"b", b"c"]]
    assert len(queue.submit_many(again, ids=names(2))) == 2  # there already: needs no room
    assert sorted(work_off(queue.driver)) == [b"a", b"b", b"c"]
    assert len(queue.submit_many([[b"d"], [b"e"]], ids=["r2", "r3"])) == 2


def test_a_full_redis_refuses_a_group_whole(queue: Queue, redis_client: Any):
    queue.submit_many([[b"a"]], ids=["r0"])
    before = dump(redis_client)
    with full(redis_client), pytest.raises(RedisFull) as caught:
        queue.submit_many([[b"b"], [b"c"]], ids=["r1", "r2"])
    assert caught.value.submitted == ()
    assert dump(redis_client) == before


@for_each("lost", [False, True])
def test_redis_full_within_a_group_leaves_nothing_half(queue: Queue, redis_client: Any, lost: bool):
    many = Many(Policy())
    for i, name in enumerate(names(4)):
        many.add(name, [b"b%d" % i])
    group = many.rest()
    intents = queue.driver.run(once(announce_of(group)))
    batch: Any = group.send(intents)
    replies = queue.driver.run(once(Batch(batch.steps[:2])))
    with full(redis_client):
        refused = queue.driver.run(once(Batch(batch.steps[2:], lenient=True)))
        assert all(isinstance(error, RedisFull) for error in refused)
        first = [RedisFull("lost"), RedisFull("lost")] if lost else replies

        def rest() -> Any:
            step = group.send([*first, *refused])
            while True:
                try:
                    reply = yield step
                except RedisFull as error:
                    step = group.throw(error)
                else:
                    step = group.send(reply)

        with many.names_submitted(), pytest.raises(RedisFull):
            queue.driver.run(rest())
    assert many.submitted == ["r0", "r1"]
    assert active(redis_client) == ["r0", "r1"]
    assert whole(queue, ["r0", "r1"])
    if lost:
        for name in ("r0", "r1"):
            redis_client.zadd(ACTIVE, {name: 1})
        assert queue.driver.run(look_after("req")) == 2
    else:
        assert work_off(queue.driver) == [b"b0", b"b1"]
    made = queue.submit_many(([b"b%d" % i] for i in range(4)), ids=names(4))
    assert len(made) == 4
    assert len(work_off(queue.driver)) == (4 if lost else 2)


def test_a_submission_that_waits_gets_in(queue: Queue, redis_client: Any):
    redis_client.config_set("maxmemory", 100_000)
    try:
        operation = Many(Policy(), 60.0)
        operation.add("r0", [b"a"])
        steps = operation.rest()

        def watched() -> Any:
            reply, error = None, None
            with contextlib.suppress(StopIteration):
                while True:
                    step = steps.send(reply) if error is None else steps.throw(error)
                    reply = error = None
                    if type(step).__name__ == "Pause":
                        redis_client.config_set("maxmemory", 0)
                        continue
                    try:
                        reply = yield step
                    except RedisFull as full_error:
                        error = full_error

        queue.driver.run(watched())
    finally:
        redis_client.config_set("maxmemory", 0)
    assert operation.submitted == ["r0"]
    assert work_off(queue.driver) == [b"a"]


# ------------------------------------------------------------------ crashes


def group_of(count: int) -> Any:
    """Returns the operation of a group with these ids."""
    many = Many(Policy())
    for i, name in enumerate(names(count)):
        assert many.add(name, [b"b%d" % i] if i else []) is None
    return many.rest()


def announce_of(group: Any) -> Any:
    """Returns the step that announces a group, where no server has all keys."""
    assert isinstance(group.send(None), SingleServer)
    return group.send(None)


across = pytest.mark.parametrize("across", [False, True], ids=["in steps", "by one script"])


@across
def test_a_group_cut_off_anywhere_heals_by_a_repeat(queue: Queue, redis_client: Any, across: bool):
    """After any step, everything is counted and logged once."""
    for after in range(10):
        redis_client.flushall()
        is_over = cut(queue.driver, group_of(3), [], after, across=across)
        if redis_client.keys("req:{*}"):
            assert set(active(redis_client)) >= {"r1", "r2"}
        queue.submit_many([[], [b"b1"], [b"b2"]], ids=names(3))
        assert whole(queue, names(3))
        assert sorted(work_off(queue.driver)) == [b"b1", b"b2"]
        assert sorted(logged(redis_client)) == names(3)
        assert active(redis_client) == []
        if is_over:
            assert after == (2 if across and not queue.driver.is_cluster else 4)
            return
    raise AssertionError("it never ended")


@across
def test_a_group_cut_off_anywhere_is_found_by_the_auditor(
    queue: Queue, redis_client: Any, across: bool
):
    """What was written is worked off without a repeat, and what was not is forgotten."""
    for after in range(4):
        redis_client.flushall()
        cut(queue.driver, group_of(3), [], after, across=across)
        for name in redis_client.zrange(ACTIVE, 0, -1):
            redis_client.zadd(ACTIVE, {name: 1})
        queue.driver.run(look_after("req"))
        is_written = after >= (0 if across and not queue.driver.is_cluster else 2)
        assert active(redis_client) == (["r1", "r2"] if is_written else [])
        assert logged(redis_client) == (["r0"] if is_written else [])


def test_a_late_group_starts_again(queue: Queue, redis_client: Any):
    """The auditor abandoned its intents before it wrote."""
    group = group_of(3)
    intents = queue.driver.run(once(announce_of(group)))
    for name in redis_client.zrange(ACTIVE, 0, -1):
        lane = Lane(queue.driver, redis_client, request_id=name.decode())
        lane.abandon(str(int(redis_client.zscore(ACTIVE, name) or 0)))
        redis_client.zrem(ACTIVE, name)

    def rest() -> Any:
        reply: Any = intents
        with contextlib.suppress(StopIteration):
            while True:
                reply = yield group.send(reply)

    queue.driver.run(rest())
    assert active(redis_client) == ["r1", "r2"]
    assert whole(queue, names(3))
    assert work_off(queue.driver) == [b"b1", b"b2"]


# ------------------------------------------------------------------ durable, asyncio


def test_durable_requests_are_confirmed_one_by_one():
    with run_pair() as pair, Queue.from_url(pair.primary.url) as queue:
        made = queue.submit_many([[b"a"], [b"b"]], ids=names(2), durable=1)
        with contextlib.closing(pair.replica.client()) as replica:
            assert replica.exists("req:{r0}", "req:{r1}") == 2
        assert [request.progress().durable for request in made] == [1, 1]


def test_the_asyncio_twin_submits_the_same(redis_url: str, redis_client: Any):
    async def later(*bodies: bytes) -> AsyncIterator[bytes]:
        for body in bodies:
            yield body

    async def requests() -> AsyncIterator[Any]:
        yield [b"a"]
        yield later(b"b", b"c")
        yield later(*numbered(1500))

    async def main() -> None:
        async with aio.Queue.from_url(redis_url) as queue:
            made = await queue.submit_many(requests(), ids=names(3))
            assert [(await request.progress()).total for request in made] == [1, 2, 1500]
            again = await queue.submit_many([[b"a"], [b"b", b"c"], numbered(1500)], ids=names(3))
            assert [request.id for request in again] == names(3)
            wrong: Any = [[b"x"], later(b"y", 7)]  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="request 1 of the call: sub-request 1 is a"):
                await queue.submit_many(wrong)
            wrong = 7
            with pytest.raises(InvalidArgument, match="requests is an int"):
                await queue.submit_many(wrong)
            for request in made:
                await request.cancel()

    asyncio.run(main())
    assert sorted(logged(redis_client)) == names(3)
