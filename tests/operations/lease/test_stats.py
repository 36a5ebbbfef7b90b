"""Tests statistics: sent measurements are returned, by priority and in total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.operations.lease import add_stats, all_of, forget_stats, read_stats
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
