"""Tests how much waits in a queue, and when it is empty: the first number of each view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations import backlog, queues
from fairlane.operations.backlog import WaitingRow, backlog_of
from fairlane.protocol import keys
from fairlane.records import Completion
from tests.support.processes.beats import beat
from tests.support.run.for_each import for_each
from tests.support.scripts.snapshots import NOW_MS, worker

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from fairlane.records import WorkerState

WORKING = [worker("a:1", per_s=8.0, units=4, leases=4)]


def rows(*ages_s: int, waiting: int = 600, total: int = 600) -> list[WaitingRow]:
    return [WaitingRow(5, waiting, total, NOW_MS - 1000 * age_s) for age_s in ages_s]


@for_each(
    "ages_s, workers, empty_ms, trend",
    [
        ((), WORKING, 0, ""),
        ((90, 90), WORKING, 150_000, "empty in 2 min: 8/s are finished"),
        ((5, 90), WORKING, 150_000, "empty in 2 min: 8/s are finished"),  # a single one is no trend
        ((5, 25, 45), WORKING, None, "grows by 22/s: 8/s are finished"),
        ((90,), [], None, "nothing works on them now"),
        ((90,), [worker("a:1", per_s=8.0, units=4, leases=0)], None, "nothing works on them now"),
        ((90,), [worker("a:1", per_s=8.0, units=4, leases=1)], 300_000,
         "empty in 5 min: 2/s are finished"),
        ((90,), [worker("a:1", per_s=None)], None, "nothing works on them now"),
        ((90,), [worker("a:1", is_alive=False, leases=4)], None, "nothing works on them now"),
    ],
)  # fmt: skip
def test_a_trend_is_what_comes_and_what_is_finished(
    ages_s: tuple[int, ...], workers: list[WorkerState], empty_ms: int | None, trend: str
):
    found = backlog_of(rows(*ages_s), len(ages_s), [], workers, NOW_MS, is_paused=False)
    assert (found.waiting, found.empty_ms, found.trend) == (600 * len(ages_s), empty_ms, trend)


def ended(age_s: float, took_s: float = 0.0) -> Completion:
    at_ms = NOW_MS - round(1000 * age_s)
    return Completion(
        id="r", queue="req", state="done", priority=5, total=60, done=60,
        submitted_ms=at_ms - round(1000 * took_s), ended_ms=at_ms, log_id=f"{at_ms}-0",
    )  # fmt: skip


def test_what_came_and_has_ended_meanwhile_counts():
    found = backlog_of(
        rows(90), 1, [ended(5), ended(25), ended(45)], WORKING, NOW_MS, is_paused=False
    )
    assert (found.came_per_s, found.grows_per_s, found.empty_ms) == (3.0, -5.0, 120_000)
    assert found.trend == "empty in 2 min: 8/s are finished, 3/s come"


def test_of_very_many_endings_a_shorter_time_is_looked_at():
    last = [ended(0.1 * number) for number in range(backlog._MOST_ENDED)]
    found = backlog_of([], 0, last, [], NOW_MS, is_paused=False)
    assert found.came_per_s is not None
    assert 500 < found.came_per_s <= 660  # 600 come in a second


def test_requests_that_were_not_read_count_as_the_others_on_average():
    found = backlog_of(rows(90, 90, waiting=7), 200, [], WORKING, NOW_MS, is_paused=False)
    assert (found.waiting, found.is_exact, found.count) == (1_400, False, "about 1,400")
    assert found.lanes == {5: 1_400}


def test_the_trend_of_a_part_of_the_requests_is_not_known():
    """The newest requests may be those that were not read."""
    found = backlog_of(rows(90, 90), 200, [], WORKING, NOW_MS, is_paused=False)
    assert (found.came_per_s, found.grows_per_s, found.empty_ms, found.trend) == (None,) * 3 + ("",)
    idle = backlog_of(rows(90, 90), 200, [], [], NOW_MS, is_paused=False)
    assert idle.trend == "nothing works on them now"


@for_each("per_s", [500, 200])
def test_of_endings_of_a_moment_nothing_says_what_came(per_s: int):
    last = [ended(number / per_s) for number in range(backlog._MOST_ENDED)]
    found = backlog_of(rows(90), 1, last, WORKING, NOW_MS, is_paused=False)
    assert (found.came_per_s, found.empty_ms, found.trend) == (None, None, "")


def test_entries_that_are_no_requests_with_work_count_as_nothing():
    found = backlog_of(rows(90, waiting=3), 2, [], [], NOW_MS, is_paused=False, away=1)
    assert (found.waiting, found.is_exact) == (3, True)
    unread = backlog_of([], 5_000, [], [], NOW_MS, is_paused=False, away=100)
    assert (unread.is_exact, unread.empty_ms) == (False, None)


def test_a_paused_queue_is_paused_and_not_soon_empty():
    found = backlog_of(rows(90), 1, [], WORKING, NOW_MS, is_paused=True)
    assert (found.empty_ms, found.trend) == (None, "paused")


def test_large_rates_and_short_times_are_words_for_people():
    fast = [worker("a:1", per_s=2_345.6, units=4, leases=4)]
    found = backlog_of(rows(90), 1, [], fast, NOW_MS, is_paused=False)
    assert found.trend == "empty in less than 2 s: 2,350/s are finished"


def test_workers_that_cannot_be_read_take_no_count_away(queue: Queue, redis_client: redis.Redis):
    queue.submit_request([b"x"] * 3, limit=2)
    beat(queue, "w:1")
    redis_client.delete(keys.worker("req", "w:1"))
    redis_client.set(keys.worker("req", "w:1"), "x")
    (listed,) = queue.driver.run(queues.list_queues()).queues
    counted = queue.demand()
    assert (counted.demand, counted.backlog.done_per_s, counted.backlog.trend) == (2, None, "")
    assert listed.backlog == counted.backlog
    redis_client.delete(keys.worker("req", "w:1"))


def test_an_announced_submission_is_not_counted_in_any_view(
    queue: Queue, redis_client: redis.Redis
):
    queue.submit_request([b"x"] * 3, limit=2)
    redis_client.zadd(keys.active("req"), {"ghost": 1})
    (listed,) = queue.driver.run(queues.list_queues()).queues
    views: list[Any] = [listed, queue.status(), queue.snapshot(), queue.demand()]
    counted = [(one.backlog.waiting, one.backlog.is_exact) for one in views]
    assert counted == [(3, True)] * 4


def test_each_view_of_a_queue_has_the_same_number_first(queue: Queue):
    beat(queue, "w:1")
    queue.submit_request([b"x"] * 70, priority=3, limit=2)
    queue.submit_request([b"x"] * 30, priority=50, delay="1h")
    (listed,) = queue.driver.run(queues.list_queues()).queues
    views: list[Any] = [listed, queue.status(), queue.snapshot(), queue.demand()]
    found = [one.backlog for one in views]
    assert found[1:] == found[:-1]
    assert found[0] is not None
    assert (found[0].waiting, found[0].lanes, found[0].empty_ms) == (100, {3: 70, 50: 30}, None)
