"""Tests how much waits in a queue, and when it is empty: the first number of each view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations import backlog, queues
from fairlane.operations.backlog import WaitingRow, backlog_of
from fairlane.records import Completion
from tests.support.processes.beats import beat
from tests.support.run.for_each import for_each
from tests.support.scripts.snapshots import NOW_MS, worker

if TYPE_CHECKING:
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
    found = backlog_of(rows(*ages_s), len(ages_s), [], workers, NOW_MS)
    assert (found.waiting, found.empty_ms, found.trend) == (600 * len(ages_s), empty_ms, trend)


def ended(age_s: float, took_s: float = 0.0) -> Completion:
    at_ms = NOW_MS - round(1000 * age_s)
    return Completion(
        id="r", queue="req", state="done", priority=5, total=60, done=60,
        submitted_ms=at_ms - round(1000 * took_s), ended_ms=at_ms, log_id=f"{at_ms}-0",
    )  # fmt: skip


def test_what_came_and_has_ended_meanwhile_counts():
    found = backlog_of(rows(90), 1, [ended(5), ended(25), ended(45)], WORKING, NOW_MS)
    assert (found.came_per_s, found.grows_per_s, found.empty_ms) == (3.0, -5.0, 120_000)
    assert found.trend == "empty in 2 min: 8/s are finished, 3/s come"


def test_of_very_many_endings_a_shorter_time_is_looked_at():
    last = [ended(0.1 * number) for number in range(backlog._MOST_ENDED)]
    found = backlog_of([], 0, last, [], NOW_MS)
    assert 500 < found.came_per_s <= 660  # 600 come in a second


def test_requests_that_were_not_read_count_as_the_others_on_average():
    found = backlog_of(rows(90, 90, waiting=7), 200, [], WORKING, NOW_MS)
    assert (found.waiting, found.is_exact, found.count) == (1_400, False, "about 1,400")


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
