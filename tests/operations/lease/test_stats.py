"""Tests statistics: sent measurements are returned, by priority and in total."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fairlane.operations.stats import (
    MOST_TASKS,
    Lately,
    OfTask,
    TaskMeasures,
    add_stats,
    add_task_stats,
    all_of,
    by_task,
    forget_stats,
    read_stats,
    read_task_stats,
    releases,
)
from fairlane.operations.workers import register_worker
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver


def send(driver: SyncDriver, priority: int, waited: dict, ran: dict, **counts: int) -> int:
    calls = add_stats("req", priority, waited, ran, counts)
    for call in calls:
        driver.run(once(call))
    return len(calls)


def test_what_was_measured_comes_back_by_priority_and_in_all(driver: SyncDriver):
    send(driver, 5, {100: 3}, {20: 2, 30: 1}, failed=1)
    send(driver, 0, {1: 1}, {5000: 1}, timeouts=2)
    send(driver, 5, {200: 1}, {10: 1})
    found = driver.run(read_stats("req"))
    assert list(found) == [0, 5]
    waited, ran = found[5].waited, found[5].ran
    assert (waited.count, waited.sum, waited.max) == (4, 500, 200)
    assert (ran.count, ran.sum, ran.max) == (4, 80, 30)
    assert found[5].counts == {"failed": 1, "timeouts": 0}
    whole = all_of(found)
    assert (whole.ran.count, whole.ran.max, whole.waited.sum) == (5, 5000, 501)
    assert whole.counts == {"failed": 1, "timeouts": 2}
    assert 5000 <= whole.ran.quantile(1.0) <= 5000


def test_of_an_unused_queue_there_are_no_statistics(driver: SyncDriver):
    assert driver.run(read_stats("req")) == {}
    send(driver, 5, {1: 1}, {1: 1})
    driver.run(forget_stats("req"))
    assert driver.run(read_stats("req")) == {}


def test_nothing_measured_is_nothing_sent():
    assert add_stats("req", 5, {}, {}, {"failed": 0}) == []


def test_any_number_of_values_fits_into_bounded_calls(driver: SyncDriver):
    values = {1 << i: 1 for i in range(60)} | {3 << i: 1 for i in range(60)}
    assert send(driver, 5, values, values) == 1
    assert driver.run(read_stats("req"))[5].ran.count == len(values)


def test_what_was_measured_of_tasks_comes_back_the_busiest_first(driver: SyncDriver):
    found = {
        "send:mail": TaskMeasures(Counter({1000: 2, 9000: 1}), 1),
        "resize": TaskMeasures(Counter({50: 9})),
        "odd:ran:count": TaskMeasures(Counter(), 2),
    }
    for _ in range(2):
        for call in add_task_stats("req", found):
            driver.run(once(call))
    read = by_task(driver.run(read_task_stats("req")))
    assert list(read) == ["resize", "send:mail", "odd:ran:count"]
    mail = read["send:mail"]
    assert (mail.ran.count, mail.ran.max, mail.ran.sum) == (6, 9000, 22_000)
    assert (mail.counts["failed"], read["odd:ran:count"].counts["failed"]) == (2, 4)
    assert 1000 <= mail.ran.quantile(0.5) < 1200
    driver.run(forget_stats("req"))
    assert driver.run(read_task_stats("req")) == {}


def test_of_ten_thousand_tasks_a_bounded_number_has_its_own_statistics(driver: SyncDriver):
    for first in range(0, 10_000, 500):
        part = {f"t{n:05}": TaskMeasures(Counter({7: 1})) for n in range(first, first + 500)}
        for call in add_task_stats("req", part):
            driver.run(once(call))
    read = by_task(driver.run(read_task_stats("req")))
    assert (len(read), list(read)[-1]) == (MOST_TASKS + 1, "other")
    assert sum(one.ran.count for one in read.values()) == 10_000
    assert driver.run(once(Command(b"HLEN", keys.task_stats("req")))) < 6_000


def test_statistics_of_a_task_are_the_sum_over_its_releases(driver: SyncDriver):
    for release, ran_us in (("1", 50), ("2", 70), ("", 90)):
        for call in add_task_stats("req", {"t": TaskMeasures(Counter({ran_us: 2}), 1)}, release):
            driver.run(once(call))
    read = driver.run(read_task_stats("req"))
    assert {of: one.ran.max for of, one in read.items()} == {
        OfTask("t", "1"): 50, OfTask("t", "2"): 70, OfTask("t"): 90,
    }  # fmt: skip
    whole = by_task(read)["t"]
    assert (whole.ran.count, whole.ran.max, whole.counts["failed"]) == (6, 90, 3)
    assert whole.lately[1:3] == (9, 3)


def test_what_ended_lately_is_that_of_this_minute_and_the_one_before():
    found = Lately.parse(b"100 6 2 30 1")
    assert found.since(100 * 60_000 + 15_000) == (36, 3, 75.0)
    assert found.since(101 * 60_000) == (6, 2, 60.0)
    assert found.since(102 * 60_000) == (0, 0, 60.0)
    assert found.plus(Lately(101, 1, 1, 4, 4)) == Lately(101, 1, 1, 10, 6)
    assert Lately.parse(b"17") == Lately.parse(b"a b c d e") == Lately()


def test_the_last_three_releases_are_known_by_the_start_of_their_first_workers(driver: SyncDriver):
    """A fourth one is added, and what was measured of the first counts for the task alone."""
    for number, release in enumerate(("r1", "r2", "r1", "r3", "r4"), 1):
        driver.run(register_worker("req", f"w:{number}", "here", number, "7", release))
        for call in add_task_stats("req", {"t": TaskMeasures(Counter({number: 1}), 1)}, release):
            driver.run(once(call))
    found = driver.run(releases("req"))
    assert [one.name for one in found] == ["r4", "r3", "r2"]
    assert found[0].first_ms >= found[1].first_ms >= found[2].first_ms > 0
    read = driver.run(read_task_stats("req"))
    counts = {of.release: (one.ran.count, one.ran.max) for of, one in read.items()}
    assert counts == {"": (2, 3), "r2": (1, 2), "r3": (1, 4), "r4": (1, 5)}
    assert by_task(read)["t"].counts["failed"] == 5
