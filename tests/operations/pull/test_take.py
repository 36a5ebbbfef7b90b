"""Tests how a program takes sub-requests: what it receives, and what it does not."""

from __future__ import annotations

import asyncio
import threading
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio, settings
from fairlane.errors import InvalidArgument, ReceiptExpired, RedisUnfit
from fairlane.operations.take import Taker, take
from fairlane.protocol import keys
from fairlane.queue import Queue
from tests.support.both_faces import both_faces
from tests.support.operations.stepping import cut_off
from tests.support.processes.takers import HOUR, bodies_of, let_expire, take_again, take_one
from tests.support.processes.workers import broken
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.taken import Taken

MINUTE_S = 60


@pytest.fixture(autouse=True)
def whole(queue: Queue) -> Iterator[None]:
    """Checks at the end that every request of a test is whole."""
    yield
    ids = [one.id for one in queue.list_requests(limit=100).requests]
    assert {name: broken(queue, name) for name in ids} == {name: [] for name in ids}


# ------------------------------------------------------------------ the order


@both_faces
def test_what_is_posted_is_taken_once(queue: Queue):
    request = queue.post("hello", id="r1")
    taken = take_one(queue)
    assert (taken.id, taken.index, taken.body, taken.attempt) == ("r1", 0, b"hello", 1)
    assert queue.take() == []
    taken.done()
    assert (request.state(), queue.take()) == ("done", [])


def test_an_empty_queue_gives_nothing_and_gets_no_key(queue: Queue, redis_client: Any):
    assert queue.take(10) == []
    assert redis_client.keys() == []


def test_no_more_are_taken_than_were_asked_for(queue: Queue):
    queue.submit_request(numbered(5), limit=5)
    assert [len(queue.take(count)) for count in (2, 1, 100)] == [2, 1, 2]


def test_the_most_urgent_comes_first(queue: Queue):
    for priority in (50, 0, 99, 5):
        queue.post(str(priority), priority=priority)
    assert bodies_of(queue.take(3)) == [b"0", b"5", b"50"]
    queue.post("urgent", priority=1)
    assert bodies_of(queue.take(3)) == [b"urgent", b"99"]


def test_requests_of_one_priority_take_turns(queue: Queue):
    for name in ("r1", "r2"):
        queue.submit_request(numbered(3), limit=1, id=name)
    order = []
    while taken := queue.take():
        order.append(taken[0].id)
        taken[0].done()
    assert order == ["r1", "r2"] * 3


def test_tenants_take_turns_however_many_requests_each_has(queue: Queue):
    for number in range(20):
        queue.post("a", id=f"a{number}", tenant="many")
    queue.submit_request(["b"] * 20, limit=20, tenant="one")
    found = bodies_of(queue.take(20))
    assert 9 <= found.count(b"a") <= 11


def test_tenants_of_one_priority_take_turns(queue: Queue):
    """It does not matter how many requests each of them has."""
    for n in range(20):
        queue.post(str(n), tenant="many")
    for n in range(2):
        queue.post(str(n), tenant="few")
    tenants = [queue.request(one.id).progress().tenant for one in queue.take(5)]
    assert (tenants.count("few"), tenants.count("many")) == (2, 3)
    assert len(queue.take(100)) == 17


def test_a_request_has_at_most_its_limit_taken(queue: Queue):
    queue.submit_request(numbered(5), limit=2)
    first, second = queue.take(10)
    assert queue.take(10) == []
    first.done()
    third = take_one(queue)
    second.release()
    third.done()
    assert [one.index for one in queue.take(10)] == [1, 3]


def test_two_takers_never_have_the_same(queue: Queue, redis_url: str):
    queue.submit_request(numbered(200), limit=200)
    found: list[Taken] = []

    def drain(own: Queue) -> None:
        while taken := own.take(7):
            found.extend(taken)

    with Queue.from_url(redis_url) as other:
        threads = [threading.Thread(target=drain, args=(one,)) for one in (queue, other, queue)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(one.index for one in found) == list(range(200))
    assert len({one.receipt for one in found}) == 200


def test_no_more_start_than_the_rate_allows(queue: Queue):
    queue.submit_request(numbered(5), limit=5, rate="1/h")
    assert len(queue.take(10)) == 1
    assert queue.take(10) == []


def test_no_more_start_than_the_rate_of_the_queue_allows(queue: Queue, redis_client: Any):
    """The rest waits in its lane, in its order."""
    queue.set_rate("5/h", 3)
    queue.submit_request([b"1"], id="first")
    queue.submit_request([b"2"], id="second")
    queue.submit_request([b"3"], id="third", tenant="t")
    queue.submit_request([b"4"], id="last")
    assert [one.body for one in queue.take(2)] == [b"1", b"2"]
    assert queue.take(9) == queue.take(9) == []
    queue.set_rate(None)
    assert {one.body for one in queue.take(9)} == {b"3", b"4"}


def test_a_paused_queue_gives_nothing_until_it_is_resumed(queue: Queue):
    queue.post("a")
    queue.pause()
    assert queue.take() == queue.take(wait_s=0.01) == []
    queue.resume()
    assert take_one(queue).body == b"a"


@both_faces
def test_a_paused_request_and_a_cancelled_one_give_nothing(queue: Queue):
    queue.post("a").pause()
    queue.post("b").cancel()
    assert queue.take(10) == []


def test_nothing_is_taken_after_the_deadline(queue: Queue, redis_client: Any):
    request = queue.post("a", deadline=HOUR)
    request.set_deadline(0.001)
    while redis_client.exists(keys.leases(request.id)) or not request.progress().ended:
        assert queue.take() == []
        let_expire(redis_client, request.id)
    (dead,) = request.dead()
    assert dead.reason == "deadline"


def test_a_queue_over_several_shards_gives_all_of_them(queue: Queue):
    queue.set_shards(3)
    for n in range(30):
        queue.post(str(n), priority=n % 3)
    found = queue.take(30)
    assert len(found) == len({one.id for one in found}) == 30
    assert queue.take(wait_s=0.01) == []


def test_of_several_shards_a_less_urgent_lane_waits(queue: Queue):
    queue.set_shards(3)
    for n in range(30):
        queue.post(str(n), priority=0 if n % 2 else 9)
    urgent = bodies_of(queue.take(15))
    assert len([body for body in urgent if int(body or 0) % 2]) >= 13  # at most one for each shard


# ------------------------------------------------------------------ waiting


def test_a_take_waits_for_a_post(queue: Queue, redis_url: str):
    found: list[Taken] = []
    with Queue.from_url(redis_url) as other:
        thread = threading.Thread(target=lambda: found.extend(other.take(wait_s=MINUTE_S)))
        thread.start()
        queue.post("a")
        thread.join()
    assert bodies_of(found) == [b"a"]


def test_a_take_waits_for_what_is_delayed_and_promotes_it(queue: Queue):
    """No worker is there to do it."""
    queue.post("a", delay=0.3)
    assert queue.take() == []
    assert take_one(queue, wait_s=MINUTE_S).body == b"a"


def test_a_take_waits_for_a_tick_of_a_schedule(queue: Queue):
    queue.schedules.add("often", cron="* * * * * *", bodies=["tick"])
    assert queue.take(wait_s=MINUTE_S)[0].body == b"tick"
    queue.schedules.remove("often")


def test_a_take_that_waits_in_a_paused_queue_goes_on_after_the_resume(queue: Queue, redis_url: str):
    queue.post("a")
    queue.pause(for_s=0.3)
    assert take_one(queue, wait_s=MINUTE_S).body == b"a"


# ------------------------------------------------------------------ leases that end


def test_after_its_time_a_sub_request_is_taken_again_and_charged(queue: Queue, redis_client: Any):
    queue.post("a")
    first = take_one(queue, visible_for=HOUR)
    second = take_again(queue, redis_client, first)
    assert (second.body, second.attempt) == (b"a", 2)
    with pytest.raises(ReceiptExpired, match="is too old: its lease is over"):
        first.done()
    second.done("b")


def test_a_short_time_passes_for_real(queue: Queue):
    queue.post("a")
    first = take_one(queue, visible_for=0.001)
    assert take_one(queue, wait_s=MINUTE_S).attempt == first.attempt + 1


def test_a_sub_request_that_is_never_settled_is_dead_in_the_end(queue: Queue, redis_client: Any):
    request = queue.post("a", attempts=2, backoff=(0, 0))
    take_again(queue, redis_client, take_one(queue))
    let_expire(redis_client, request.id)
    assert queue.take() == []
    (dead,) = request.dead()
    assert (dead.reason, dead.body) == ("died", b"a")


def test_a_time_that_is_longer_than_the_requests_lease_counts(queue: Queue, redis_client: Any):
    request = queue.post("a", lease=1)
    taken = take_one(queue, visible_for=HOUR)
    redis_client.zadd(keys.active("req"), {request.id: 1.5})
    assert queue.take() == []  # it checks the request, and finds nothing that has expired
    left_ms = redis_client.zscore(keys.leases(request.id), "0") - redis_client.time()[0] * 1000
    assert 1000 * (HOUR - MINUTE_S) < left_ms <= 1000 * (HOUR + 1)
    taken.done()


def test_a_program_that_dies_anywhere_in_a_take_loses_nothing(
    queue: Queue, redis_client: Any, monkeypatch: pytest.MonkeyPatch
):
    """After the pop its token is lost; after the acquire it holds a lease."""
    monkeypatch.setattr(settings, "TOKEN_GRACE_MS", 1)
    is_over, steps, attempts = False, 0, set[int]()
    while not is_over:
        steps += 1
        redis_client.flushall()
        request = queue.post("a")
        is_over = cut_off(queue.driver, take(Taker("req", lambda: "taker:dead:1"), 1, 30), steps)
        let_expire(redis_client, request.id)
        redis_client.hdel(keys.conf("req"), "audited", "lock_until")
        taken = take_one(queue, wait_s=MINUTE_S)
        attempts.add(taken.attempt)
        taken.done()
        assert broken(queue, request.id) == []
    assert steps > 5
    assert attempts == {1, 2}


def test_a_duty_that_fails_does_not_keep_others_from_being_taken(queue: Queue, redis_client: Any):
    queue.post("a")
    queue.post("b", id="bad")
    redis_client.hset(keys.request_hash("bad"), "policy", "damaged")
    redis_client.zadd(keys.active("req"), {"bad": 1.5})
    assert bodies_of(queue.take(2)) == [b"a"]
    redis_client.set(keys.delayed("req"), "no zset")
    with pytest.raises(RedisUnfit):
        queue.take()
    redis_client.flushall()


# ------------------------------------------------------------------ asyncio


def test_an_asyncio_take_that_is_cancelled_loses_nothing(redis_url: str, queue: Queue):
    async def go() -> list[bytes | None]:
        async with aio.Queue.from_url(redis_url) as own:
            waiting = asyncio.create_task(own.take(wait_s=MINUTE_S))
            await own.take()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await own.post("a")
            return [one.body for one in await own.take(wait_s=MINUTE_S)]

    assert asyncio.run(go()) == [b"a"]
    assert queue.take() == []


# ------------------------------------------------------------------ bad input


@for_each("count", [0, -1, 101, 1.5, True, "2", None])
def test_a_count_that_is_not_valid_is_refused(queue: Queue, count: Any):
    with pytest.raises(InvalidArgument, match="count"):
        queue.take(count)


@for_each("seconds", [0, -1, 0.0001, nan, inf, 86_401, True, "30", None])
def test_a_time_that_is_not_valid_is_refused(queue: Queue, seconds: Any):
    queue.post("a")
    with pytest.raises(InvalidArgument, match=r"visible_for .* is not valid: more than 0 seconds"):
        queue.take(visible_for=seconds)
    taken = take_one(queue)
    with pytest.raises(InvalidArgument, match=r"visible_for .* is not valid"):
        taken.extend(seconds)


@for_each("seconds", [-1, nan, inf, 86_401, True, "30", None])
def test_a_wait_that_is_not_valid_is_refused(queue: Queue, seconds: Any):
    with pytest.raises(InvalidArgument, match=r"wait_s .* is not valid: seconds are expected"):
        queue.take(wait_s=seconds)
