"""Tests why a request waits: each cause with its figures, and its place in the lanes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Flow
from fairlane.common.rate import rate_of_queue
from fairlane.errors import RequestNotFound
from fairlane.operations import estimate, rates, tokens
from fairlane.operations.shards import Shards, set_shards
from fairlane.operations.why import why
from fairlane.operations.workers import no_worker
from fairlane.protocol import keys
from fairlane.records import Cause, LanePlace
from tests.support.operations.upkeep import server_ms
from tests.support.processes.beats import beat
from tests.support.scripts.requests import next_slice, once, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.steps import Batch, Command
    from fairlane.queue import Queue
    from fairlane.records import WhyWaiting
    from tests.support.scripts.requests import Lane

IN_A_MINUTE = r"[0-9:]{8} UTC \(in (59|60) s\)"


@pytest.fixture
def served(queue: Queue) -> Queue:
    """A queue with a worker that only sends heartbeats: four units, all of them idle."""
    beat(queue, "w:9", "0 leases; 4 units 20.000/s")
    return queue


@pytest.fixture
def holder(served: Queue) -> Queue:
    """A queue with heartbeats of the worker in whose name `next_slice` takes leases."""
    beat(served, "w:1", "0 leases")
    return served


def only(found: WhyWaiting) -> Cause:
    """Returns the only cause."""
    (cause,) = found.causes
    return cause


# ------------------------------------------------------------------ the request


def test_a_reached_limit_names_the_workers_with_the_most_permits_first(
    holder: Queue, driver: SyncDriver
):
    request = holder.submit_request([b"x"] * 9, limit=2)
    for _ in range(2):
        next_slice(driver, count=1)
    found = request.why()
    cause = only(found)
    assert (cause.kind, cause.text) == ("limit", "2 of 2 permits are held by w:1 (2)")
    assert cause.figures == {"held": 2, "limit": 2, "workers": {"w:1": 2}}
    assert (found.workers, found.lane_place) == ({"w:1": 2}, None)
    assert found.request.id == request.id


def test_a_holder_without_a_recent_heartbeat_is_named(served: Queue, driver: SyncDriver):
    request = served.submit_request([b"x"] * 9, limit=1)
    next_slice(driver, count=1)
    limit, late = request.why().causes
    assert (limit.kind, late.kind, late.figures) == ("limit", "late", {"workers": {"w:1": 1}})
    assert late.text == "w:1 has no recent heartbeat: what is held there is taken back"


def test_a_program_that_takes_is_not_late_without_a_heartbeat(served: Queue):
    request = served.submit_request([b"x"] * 9, limit=1)
    served.take()
    cause = only(request.why())
    (holder,) = cause.figures["workers"]
    assert (cause.kind, holder.startswith("taker:")) == ("limit", True)


def test_a_request_whose_rest_is_held_waits_for_nothing_else(holder: Queue, driver: SyncDriver):
    request = holder.submit_request([b"x"], limit=3)
    next_slice(driver)
    cause = only(request.why())
    assert cause.kind == "held"
    assert cause.text == "nothing else of it waits: 1 of 3 permits is held by w:1"


def test_a_delayed_request_names_its_time(served: Queue):
    cause = only(served.submit_request([b"x"], delay=60).why())
    assert (cause.kind, (cause.until_ms or 0) > 0) == ("delay", True)
    assert re.fullmatch(rf"starts at {IN_A_MINUTE}", cause.text)


def test_a_delay_is_the_cause_though_there_is_a_rate_too(served: Queue):
    cause = only(served.submit_request([b"x"], delay=60, rate="30/m").why())
    assert cause.kind == "delay"
    assert re.fullmatch(rf"starts at {IN_A_MINUTE}", cause.text)


def test_a_rate_names_when_it_allows_more(served: Queue):
    request = served.submit_request([b"x"] * 3, rate="1/m", rate_key="api")
    served.take(1)[0].done()
    assert served.take(1) == []
    cause = only(request.why())
    assert (cause.kind, cause.figures) == ("rate", {"rates": ["1/m, shared as api"]})
    assert re.fullmatch(rf"its rate 1/m, shared as api allows more at {IN_A_MINUTE}", cause.text)


@pytest.mark.parametrize("rate", [{}, {"rate": "30/m"}])
def test_a_handler_that_asked_for_a_pause_of_the_request_is_the_cause(
    served: Queue, driver: SyncDriver, rate: dict[str, Any]
):
    request = served.submit_request([b"x"] * 3, **rate)
    settle(driver, next_slice(driver, count=1))
    driver.run(rates.hold("req", request.id, 60_000))
    cause = only(request.why())
    assert cause.kind == "handler"
    text = rf"a handler asked for a pause of the whole request: it goes on at {IN_A_MINUTE}"
    assert re.fullmatch(text, cause.text)


def test_a_request_after_others_names_those_that_are_not_over(served: Queue, driver: SyncDriver):
    first = served.submit_request([b"x"] * 2, id="first", limit=1, priority=0)
    served.submit_request([b"x"], id="second", delay=60)
    request = served.submit_request([b"x"], after=["first", "second"])
    settle(driver, next_slice(driver, count=1))
    cause = only(request.why())
    assert cause.text == (
        "starts after other requests are done: first (active, 1 of 2), second (active, 0 of 1)"
    )
    assert cause.figures == {"after": {"first": "active", "second": "active"}, "more": 0}
    for other in (first, served.request("second")):
        other.cancel()
    text = (
        "the requests before it have ended: the leading worker starts or cancels it within seconds"
    )
    found = request.why()
    assert (only(found).kind, only(found).text) == ("after", text)
    assert found.estimate.why_not == "a request that waits for others has no time to start"


def test_a_retry_names_its_time_and_the_last_error(lane: Lane):
    lane.now = server_ms(lane.client)
    held = lane.begin(1)
    lane.complete(held, others=[(held.ids[0], "retry", 60_000)])
    cause = lane.run(why("r1")).causes[0]
    assert (cause.kind, cause.until_ms) == ("retry", lane.now + 60_000)
    assert cause.text.startswith("the sub-request that waits is to be tried again at ")
    assert cause.text.endswith(", after why retry")


def test_what_workers_gave_back_names_the_reason(lane: Lane):
    lane.now = server_ms(lane.client)
    held = lane.begin(1)
    reason = "no worker has had the task images.resize"
    lane.complete(held, others=[(held.ids[0], "release", 60_000)], reason=reason)
    cause = lane.run(why("r1")).causes[0]
    assert (cause.kind, cause.figures["reason"]) == ("task", reason)
    assert cause.text.startswith("workers gave back 1 sub-request until ")


def test_a_step_without_work_waits_for_the_one_that_feeds_it(served: Queue):
    run = served.submit_flow(Flow("mail").step("a").step("b"), [b"x"])
    cause = only(served.request(f"{run.id}.2").why())
    assert (cause.kind, cause.text) == ("open", f"open: it is fed by request {run.id}.1")


def test_an_open_request_without_work_waits_for_its_producer(served: Queue):
    with served.open(id="open") as request:
        cause = only(request.why())
        assert (cause.kind, cause.text) == ("open", "open: its producer is still sending, or gone")
        assert request.why().estimate.ends_ms is None
        request.add(b"x")
        assert only(request.why()).kind == "token"


def test_a_request_past_its_deadline_is_expiring(lane: Lane):
    lane.start(1, deadline_ms=1_000)
    cause = lane.run(why("r1")).causes[0]
    assert cause.kind == "expiring"
    assert cause.text.startswith("its deadline passed at ")


def test_a_request_that_is_cancelled_waits_for_what_is_held(holder: Queue, driver: SyncDriver):
    request = holder.submit_request([b"x"] * 2, limit=1)
    next_slice(driver, count=1)
    request.cancel()
    assert only(request.why()).text == "cancelling: 1 of 1 permit is held by w:1"


def test_an_ended_request_waits_for_nothing(queue: Queue):
    request = queue.submit_request([b"x"])
    request.cancel()
    found = request.why()
    assert (found.causes, found.lane_place, found.request.state) == ([], None, "cancelled")
    assert found.estimate.why_not == "it has ended"


def test_an_unknown_request_is_not_found(queue: Queue):
    with pytest.raises(RequestNotFound, match="there is no request absent"):
        queue.why("absent")


# ------------------------------------------------------------------ the queue


def test_the_rate_of_the_queue_is_named_only_while_it_allows_nothing(
    served: Queue, driver: SyncDriver
):
    request = served.submit_request([b"x"])
    served.set_rate("1/m", 1)
    assert "queue_rate" not in [cause.kind for cause in request.why().causes]
    allowed = driver.run(
        rates.take([rate_of_queue("req", 60_000_000, 1)], 1, waits=rates.Waits.NOT_YET)
    )
    assert allowed == (1, 0)
    cause = request.why().causes[0]
    assert (cause.kind, cause.figures) == ("queue_rate", {"rate": "1/m"})
    off = re.escape("fairlane queue rate off removes it")
    assert re.fullmatch(
        rf"the rate of queue req, 1/m, allows more at {IN_A_MINUTE}: {off}", cause.text
    )


def test_every_cause_is_named_that_of_the_request_first(queue: Queue):
    """Each of these causes would be enough."""
    request = queue.submit_request([b"x"])
    request.pause()
    queue.pause(for_s=60)
    paused, queue_paused, workers = queue.why(request.id).causes
    assert (paused.kind, paused.text) == ("paused", f"paused: fairlane resume {request.id}")
    assert (queue_paused.kind, (queue_paused.until_ms or 0) > 0) == ("queue", True)
    assert queue_paused.text.startswith("queue req is paused until ")
    assert (workers.kind, workers.text) == ("workers", no_worker("req"))
    queue.resume()


def test_without_a_live_worker_the_place_is_still_named(queue: Queue):
    request = queue.submit_request([b"x"])
    found = request.why()
    assert [cause.kind for cause in found.causes] == ["workers", "token"]
    assert found.lane_place == LanePlace({}, 0)
    assert found.estimate.why_not == "a queue without workers has no time to start"


# ------------------------------------------------------------------ the lanes


def test_the_tokens_ahead_are_counted_by_lane_without_stale_ones(served: Queue):
    urgent = served.submit_request([b"x"] * 3, limit=3, priority=0)
    served.submit_request([b"x"] * 2, limit=2)
    request = served.submit_request([b"x"] * 9, limit=4)
    served.submit_request([b"x"] * 9, limit=4)  # behind it
    served.submit_request([b"x"] * 9, priority=6)
    found = request.why()
    assert only(found).kind == "lanes"
    assert only(found).text == ("5 tokens of 2 requests are ahead of it: 3 in lane 0, 2 in lane 5")
    assert found.lane_place == LanePlace({0: 3, 5: 2}, 2)
    assert found.lane_place.place == 6
    urgent.cancel()
    found = request.why()
    assert only(found).text == "2 tokens of 1 request are ahead of it: 2 in lane 5"


def test_the_first_in_line_is_taken_next(served: Queue):
    found = served.submit_request([b"x"]).why()
    assert only(found).text == "no token is ahead of it: the next free worker takes it"
    assert found.lane_place is not None
    assert found.lane_place.place == 1


def test_no_worker_takes_it_next_while_the_queue_is_paused(served: Queue):
    request = served.submit_request([b"x"])
    served.pause()
    paused, token = request.why().causes
    assert (paused.kind, token.text) == ("queue", "no token is ahead of it")
    served.resume()


def test_without_a_worker_none_takes_it_next(queue: Queue):
    _, token = queue.submit_request([b"x"]).why().causes
    assert token.text == "no token is ahead of it"


def test_more_urgent_requests_at_work_go_first_although_they_have_no_token(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis
):
    """Their leased sub-requests return to an earlier lane before a unit reaches this one."""
    beat(queue, "w:1", "1 leases; 1 units 10.000/s")
    urgent = queue.submit_request([b"x"] * 101, id="urgent", limit=1, priority=0)
    next_slice(driver, count=1)
    redis_client.hset(keys.taken("req", "w:1"), "0", "urgent#0.1")
    redis_client.pexpire(keys.taken("req", "w:1"), 60_000)
    request = queue.submit_request([b"x"])
    found = request.why()
    assert only(found).text == (
        "no token is ahead of it; the only unit of the workers is busy, 1 more urgent request at "
        "work with 1 permit"
    )
    assert found.lane_place == LanePlace({}, 0, urgent=1, urgent_held=1)
    starts_ms = found.estimate.starts_ms or 0
    assert 10_000 <= starts_ms - found.now_ms <= 10_500
    urgent.set_priority(9)
    assert (
        only(request.why()).text == "no token is ahead of it; the only unit of the workers is busy"
    )


def test_a_token_in_no_lane_is_named(served: Queue, redis_client: redis.Redis):
    request = served.submit_request([b"x"])
    redis_client.delete(keys.lanes("req")[5])
    found = request.why()
    assert only(found).text.startswith("its token is in no lane: ")
    assert found.lane_place == LanePlace({}, 0, is_lost=True)


def test_behind_very_many_tokens_the_place_is_the_least(
    served: Queue, monkeypatch: pytest.MonkeyPatch
):
    """Lanes are counted in full; only the tokens of the first ones are read."""
    for module in (tokens, estimate):
        monkeypatch.setattr(module, "MOST_READ", 3)
    served.submit_request([b"x"] * 8, limit=8, priority=1)
    request = served.submit_request([b"x"] * 8, limit=2)
    found = request.why()
    assert only(found).text == "at least 8 tokens of 1 request are ahead of it: 8 in lane 1"
    assert found.lane_place == LanePlace({1: 8}, 1, is_exact=False)


def test_in_a_queue_of_several_shards_the_shard_with_the_fewest_tokens_counts(
    served: Queue, driver: SyncDriver
):
    driver.run(set_shards("req", Shards((2, 3))))
    for number in range(3):
        served.submit_request([b"x"], id=f"other{number}", priority=0)
    request = served.submit_request([b"x"] * 2, limit=2)  # a token in each shard
    counts = [
        sum(map(len, driver.run(tokens.read_waiting("req", (shard,))).tokens.values())) - 1
        for shard in (2, 3)
    ]
    found = request.why()
    assert sum(counts) == 3
    assert found.lane_place is not None
    assert found.lane_place.place == min(counts) + 1


def test_the_cost_is_bounded(served: Queue, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch):
    """Of many requests ahead, only a part is read; the others count as these on average."""
    monkeypatch.setattr(estimate, "MOST_REQUESTS", 2)
    ids = [f"other{number}" for number in range(6)]
    served.submit_many([[b"x"] * 10] * 6, ids=ids, priority=0, limit=4)
    request = served.submit_request([b"x"])
    hashes = [(b"HMGET", keys.request_hash(name)) for name in ids]
    sent = [command.args[:2] for command in each_command(driver, why(request.id))]
    assert len([words for words in sent if words in hashes]) == 2
    found = request.why()
    starts_ms = found.estimate.starts_ms or 0
    assert 3_000 <= starts_ms - found.now_ms <= 3_100  # 60 sub-requests at 20/s


def each_command(driver: SyncDriver, operation: Any) -> Iterator[Command]:
    """Runs an operation, and yields the commands that it sends."""
    reply: Any = None
    while True:
        try:
            step: Batch | Command = operation.send(reply)
        except StopIteration:
            return
        yield from getattr(step, "steps", [step])
        reply = driver.run(once(step))
