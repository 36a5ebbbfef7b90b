"""Tests backpressure: a queue's bound on what waits, and submissions that wait for room."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio, settings
from fairlane.common import clock
from fairlane.errors import InvalidArgument, QueueFull, RedisFull, RequestExists
from fairlane.operations import admission, workers
from fairlane.operations.submit import submit
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.queue import Queue
from tests.support.operations.stepping import script_of
from tests.support.operations.upkeep import watch
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import cut, dump, next_slice, numbered, once, settle, work_off
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.scripts.requests import Lane

THREE = [[b"a", b"b"], [b"c"], [b"d", b"e"]]
CONF = keys.conf("req")


def waiting(queue: Queue) -> int:
    """Returns the present count."""
    return queue.driver.run(admission.read_bounds(queue.name)).waiting


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the pauses that were requested; none is made."""
    asked: list[float] = []
    monkeypatch.setattr(clock, "sleep", asked.append)
    return asked


def everything(lane: Lane) -> dict[bytes, Any]:
    """Returns all that is stored, except markers, the last recount, and a zero count."""
    gone = (
        ["recounted"] if int(lane.client.hget(CONF, "waiting") or 0) else ["recounted", "waiting"]
    )
    lane.client.hdel(CONF, *gone)
    client = lane.client
    states = {key: client.hget(key, "state") for key in client.scan_iter("req:*")}
    return {key: one for key, one in dump(client).items() if states.get(key) != b"abandoned"}


# ------------------------------------------------------------------ refused


def test_a_submission_above_the_bound_is_refused_and_leaves_no_trace(queue: Queue, lane: Lane):
    queue.set_max_waiting(10)
    queue.submit_request(numbered(8), id="r1")
    before = everything(lane)
    with pytest.raises(QueueFull) as caught:
        queue.submit_request(numbered(3), id="r2")
    assert everything(lane) == before
    assert caught.value.exit_code == 5
    assert str(caught.value) == (
        "queue req has 8 waiting sub-requests, 3 more would pass its bound of 10: wait until "
        "workers have caught up, or raise it with fairlane queue set --queue req --max-waiting"
    )
    queue.submit_request(numbered(2), id="r2")
    assert waiting(queue) == 10
    work_off(queue.driver)
    assert waiting(queue) == 0


def test_an_empty_request_needs_no_room(queue: Queue):
    queue.submit_request(numbered(3), id="r1")
    queue.set_max_waiting(1)
    with pytest.raises(QueueFull):
        queue.submit_many([[b"a"], []], ids=["r2", "r3"])
    assert queue.submit_request([], id="r4").state() == "done"
    assert [request.state() for request in queue.submit_many([[], []])] == ["done", "done"]


def test_a_stream_that_meets_the_bound_is_taken_back(queue: Queue, lane: Lane):
    queue.set_max_waiting(2500)
    queue.submit_request(numbered(10), id="r1")
    before = everything(lane)
    with pytest.raises(QueueFull, match="has 2,010 waiting sub-requests, 1,000 more"):
        queue.submit_request(numbered(5000), id="r2")
    assert everything(lane) == before


def test_the_same_again_is_found_however_full_the_queue_is(queue: Queue):
    queue.set_max_waiting(10)
    queue.submit_request(numbered(10), id="r1")
    assert queue.submit_request(numbered(10), id="r1").state() == "active"
    work_off(queue.driver)
    queue.submit_request(numbered(10), id="r2")
    assert queue.submit_request(numbered(10), id="r1").state() == "done"
    with pytest.raises(RequestExists):
        queue.submit_request(numbered(9), id="r1")
    assert waiting(queue) == 10


def test_a_repeat_that_finds_the_request_elsewhere_counts_nothing(queue: Queue):
    """The id belongs to another queue: what was admitted for it is subtracted."""
    queue.set_max_waiting(10)
    type(queue)(queue.driver, "other").submit_request(numbered(3), id="r1")
    with pytest.raises(RequestExists):
        queue.submit_request(numbered(3), id="r1")
    assert waiting(queue) == 0


def test_what_is_settled_makes_room_at_the_next_refusal(queue: Queue):
    """A refused producer counts again before it concludes that there is no room."""
    queue.set_max_waiting(10)
    queue.submit_request(numbered(10), id="r1")
    held = next_slice(queue.driver, count=4)
    settle(queue.driver, held)
    assert waiting(queue) == 10
    queue.submit_request(numbered(len(held.entries)), id="r2")
    assert waiting(queue) == 10
    with pytest.raises(QueueFull):
        queue.submit_request([b"a"], id="r3")


def test_a_full_queue_is_counted_once_a_second_not_by_every_producer(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch
):
    queue.set_max_waiting(10)
    queue.submit_request(numbered(10), id="r1")
    with pytest.raises(QueueFull):
        queue.submit_request([b"a"], id="r2")
    monkeypatch.setattr(settings, "RECOUNT_MS", 3_600_000)
    work_off_one(queue)
    with pytest.raises(QueueFull):
        queue.submit_request([b"a"], id="r2")
    lane.client.hdel(CONF, "recounted")
    queue.submit_request([b"a"], id="r2")


def work_off_one(queue: Queue) -> None:
    """Settles one slice."""
    held = next_slice(queue.driver, count=1)
    settle(queue.driver, held)


# ------------------------------------------------------------------ waiting for room


@pytest.mark.rest
def test_a_stream_waits_while_workers_catch_up(queue: Queue, redis_url: str):
    queue.set_max_waiting(2000)
    seen, over = [], threading.Event()

    def work() -> None:
        with Queue.from_url(redis_url) as own:
            while not over.is_set():
                seen.extend(work_off(own.driver, count=500))

    worker = threading.Thread(target=work)
    worker.start()
    most = []

    def bodies() -> Iterator[bytes]:
        for i, body in enumerate(numbered(12_000)):
            if i % 500 == 0:
                most.append(waiting(queue))
            yield body

    try:
        queue.submit_request(bodies(), id="r1", max_wait=30)
        wait_until(lambda: queue.request("r1").state() == "done")
    finally:
        over.set()
        worker.join()
    assert sorted(seen) == sorted(numbered(12_000))
    assert max(most) <= 2000


def test_a_wait_ends_in_time_and_takes_a_stream_back(queue: Queue, lane: Lane, pauses: list[float]):
    queue.set_max_waiting(2000)
    before = everything(lane)
    with pytest.raises(QueueFull):
        queue.submit_request(numbered(3000), id="r1", max_wait=10)
    assert sum(pauses) == pytest.approx(10)
    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert max(pauses) == 1
    assert everything(lane) == before


@pytest.mark.rest
def test_each_chunk_may_wait_as_long(queue: Queue, monkeypatch: pytest.MonkeyPatch, redis_url: str):
    """The timeout is for one refusal, not for the whole stream."""
    waits: list[float] = []
    monkeypatch.setattr(settings, "RECOUNT_MS", 0)
    with Queue.from_url(redis_url) as other:

        def let_one_go(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) % 3 == 0:
                work_off(other.driver)

        monkeypatch.setattr(clock, "sleep", let_one_go)
        queue.set_max_waiting(1000)
        queue.submit_request(numbered(6000), id="r1", max_wait=0.36)
        work_off(other.driver)
    assert len(waits) == 15
    assert sum(waits) > 1
    assert queue.request("r1").state() == "done"


@for_each("count", [3, 2500])
def test_a_submission_waits_for_a_full_redis_too(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch, count: int
):
    waits: list[float] = []

    def make_room(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            lane.client.config_set("maxmemory", 0)

    def bodies() -> Iterator[bytes]:
        for i, body in enumerate(numbered(count)):
            if i == (2100 if count > 1000 else 0):
                lane.client.config_set("maxmemory", 100_000)
            yield body

    monkeypatch.setattr(clock, "sleep", make_room)
    try:
        queue.submit_request(bodies(), id="r1", max_wait=60)
        lane.client.config_set("maxmemory", 100_000)
        with pytest.raises(RedisFull):
            queue.submit_request(numbered(count), id="r2", max_wait=3)
    finally:
        lane.client.config_set("maxmemory", 0)
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert lane.number("total") == count
    assert lane.is_whole()
    assert lane.client.exists(*keys.request_keys("r2")) == 0


@for_each("count", [3, 3000])
def test_ctrl_c_while_it_waits_leaves_nothing(
    queue: Queue, lane: Lane, monkeypatch: pytest.MonkeyPatch, count: int
):
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    queue.set_max_waiting(2000)
    queue.submit_request(numbered(2000 if count == 3 else 10), id="other")
    before = everything(lane)
    monkeypatch.setattr(clock, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.submit_request(numbered(count), id="r1", max_wait=10)
    assert everything(lane) == before


@for_each("seconds", [-1, 2401, "41m", "soon", None, True])
def test_a_wait_that_is_no_time_is_refused(queue: Queue, lane: Lane, seconds: Any):
    """After an hour without a chunk the open request would end."""
    with pytest.raises(InvalidArgument, match="max_wait"):
        queue.submit_request([b"a"], max_wait=seconds)
    assert lane.dump() == {}


def test_the_asyncio_api_waits_and_bounds_alike(redis_url: str):
    async def both() -> None:
        async with aio.Queue.from_url(redis_url) as queue:
            assert await queue.set_max_waiting(2) == (2, 0)
            request = await queue.submit_request([b"a", b"b"], id="r1")
            with pytest.raises(QueueFull):
                await queue.submit_request([b"c"], id="r2", max_wait=0.1)
            waiting_one = asyncio.create_task(queue.submit_request([b"c"], id="r2", max_wait=20))
            await asyncio.sleep(0)
            await request.cancel()
            assert (await waiting_one).id == "r2"

    asyncio.run(both())


# ------------------------------------------------------------------ how the count follows


def test_a_bound_that_is_set_while_requests_run_counts_them(queue: Queue):
    queue.submit_request(numbered(10), id="r1")
    queue.submit_request(numbered(2500), id="r2")
    settled = next_slice(queue.driver, count=3)
    settle(queue.driver, settled)
    assert queue.set_max_waiting(3000) == (3000, 2510 - len(settled.entries))
    assert queue.set_max_waiting(0) == (0, 0)
    assert queue.set_max_waiting(1) == (1, 2510 - len(settled.entries))


@for_each("most", [-1, 1.5, True, "7", None, 10**15 + 1])
def test_a_bound_that_is_no_number_is_refused(queue: Queue, lane: Lane, most: Any):
    with pytest.raises(InvalidArgument, match="max_waiting"):
        queue.set_max_waiting(most)
    assert lane.dump() == {}


def test_the_count_follows_the_work_without_any_refusal(queue: Queue, lane: Lane):
    """The leader's recount: done or cancelled ones are settled; another queue's do not count."""
    queue.set_max_waiting(100)
    queue.submit_request(numbered(10), id="r1")
    queue.submit_request(numbered(5), id="r2")
    other = type(queue)(queue.driver, "other")
    other.submit_request(numbered(7), id="r3")
    lane.client.zadd(keys.active("req"), {"r3": 1, "intent": 1})
    work_off_one(queue)
    queue.request("r2").cancel()
    queue.driver.run(admission.report_backlog("req"))
    left = queue.request("r1").progress().left
    assert waiting(queue) == left < 10
    lane.client.zrem(keys.active("req"), "intent", "r3")


def test_a_request_that_cannot_be_read_does_not_stop_the_count(queue: Queue, lane: Lane):
    queue.set_max_waiting(100)
    queue.submit_request(numbered(10), id="r1")
    lane.client.zadd(keys.active("req"), {"broken": 1})
    lane.client.set("req:{broken}", "no hash")
    work_off_one(queue)
    queue.driver.run(admission.report_backlog("req"))
    assert waiting(queue) < 10
    lane.client.delete("req:{broken}")
    lane.client.zrem(keys.active("req"), "broken")


def test_a_request_that_vanished_counts_no_more(queue: Queue, lane: Lane):
    queue.set_max_waiting(10)
    queue.submit_request(numbered(10), id="r1")
    lane.client.delete(*lane.names)
    lane.client.zadd(keys.active("req"), {"r1": 1})
    queue.driver.run(workers.look_after("req"))
    assert waiting(queue) == 0


@for_each("after", range(20))
def test_a_bounded_submission_cut_off_is_counted_once(lane: Lane, queue: Queue, after: int):
    queue.set_max_waiting(100)
    cut(lane.driver, submit("r1", Policy()), THREE, after)
    assert lane.run(submit("r1", Policy()), iter(THREE)) == 5
    assert waiting(queue) == 5
    assert sorted(work_off(lane.driver, count=1)) == [b"a", b"b", b"c", b"d", b"e"]
    assert waiting(queue) == 0
    assert lane.hash()["state"] == "done"


@for_each("after", range(3, 8))
def test_what_a_dead_producer_was_admitted_is_taken_back(lane: Lane, queue: Queue, after: int):
    """It is subtracted with its intent, or when its request is cancelled."""
    queue.set_max_waiting(100)
    cut(lane.driver, submit("r1", Policy()), THREE, after)
    if lane.client.exists("req:{r1}"):
        queue.request("r1").cancel()
    lane.client.zadd(keys.active("req"), {"r1": 1}, xx=True)
    lane.run(workers.look_after("req"))
    assert waiting(queue) == 0


def test_many_producers_never_pass_the_bound_together(redis_url: str, queue: Queue):
    queue.set_max_waiting(100)
    outcomes: list[str] = []

    def produce(n: int) -> None:
        with Queue.from_url(redis_url) as own:
            for i in range(10):
                try:
                    own.submit_request(numbered(7), id=f"p{n}.{i}")
                    outcomes.append("in")
                except QueueFull:
                    outcomes.append("full")

    producers = [threading.Thread(target=produce, args=(n,)) for n in range(8)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert (outcomes.count("in"), outcomes.count("full")) == (14, 66)
    assert waiting(queue) == 98
    assert queue.driver.run(once(Command(b"ZCARD", keys.active("req")))) == 14


# ------------------------------------------------------------------ what it costs


def test_the_same_again_after_a_recount_counts_once(queue: Queue):
    queue.submit_request([b"a", b"b"], id="r1")
    queue.set_max_waiting(100)
    queue.driver.run(admission.report_backlog("req"))
    queue.submit_request([b"a", b"b"], id="r1")
    assert waiting(queue) == 2


def test_without_a_bound_a_recount_reads_the_bound_only(queue: Queue):
    """The leader recounts after each check of requests."""
    queue.submit_request(numbered(3), id="r1")
    assert watch(queue.driver, admission.report_backlog("req"))[1] == ["HGET"]
    queue.driver.run(admission.set_max_waiting("req", 100))
    assert watch(queue.driver, admission.report_backlog("req"))[1] == [
        "HGET",
        "ZRANGE",
        "1 HMGET",
        "report_backlog",
    ]


def scripts_of(run: Callable[[Any], Any], operation: Any) -> list[str]:
    """Returns the scripts that an operation calls; `submit` only if one server has all keys."""
    names: list[str] = []

    def watched() -> Any:
        reply = None
        with contextlib.suppress(StopIteration):
            while True:
                step = operation.send(reply)
                reply = yield step
                if script_of(step) and reply is not None:
                    names.append(script_of(step))

    run(watched())
    return names


def test_without_a_bound_a_submission_costs_what_it_did(lane: Lane):
    """With a bound, each chunk needs one round trip more, to the dispatch slot."""

    def run(operation: Any) -> None:
        lane.run(operation, iter(THREE))

    lane.driver.check()
    begin = ["intend", "enqueue"] if lane.driver.is_cluster else ["submit"]
    assert scripts_of(run, submit("r1", Policy())) == [*begin, "append", "append", "seal"]
    lane.run(admission.set_max_waiting("req", 100))
    expected = [begin[0], "admit", "enqueue", "admit", "append", "admit", "append", "seal"]
    assert scripts_of(run, submit("r2", Policy())) == expected
    assert lane.client.hget(CONF, "waiting") == b"10"
