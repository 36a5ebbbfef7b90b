"""Tests frames: rates come from two snapshots, and a frame has what history keeps."""

from __future__ import annotations

from fairlane.live import MOST_SHARES, OTHERS, Rates, Totals, frame_of, rates_between
from tests.support.scripts.snapshots import NOW_MS, measured, request, snapshot_of


def test_the_first_look_has_no_rates():
    assert rates_between(None, Totals(NOW_MS, measured(100))) == Rates()


def test_rates_are_differences_of_two_looks():
    before, after = Totals(NOW_MS, measured(100)), Totals(NOW_MS + 5_000, measured(600, failed=10))
    found = rates_between(before, after)
    assert (found.done, found.failed) == (100.0, 2.0)


def test_the_waiting_time_is_that_of_the_interval_alone():
    """An earlier slow hour does not hide that the queue is quick now."""
    before = measured(1_000, waited_ms=60_000)
    after = measured(1_000, waited_ms=60_000)
    after.waited.add({8: 50})
    found = rates_between(Totals(NOW_MS, before), Totals(NOW_MS + 1_000, after))
    assert found.waited_ms is not None
    assert max(found.waited_ms) <= 9


def test_an_interval_without_a_call_has_no_waiting_time():
    found = rates_between(Totals(NOW_MS, measured(9)), Totals(NOW_MS + 1_000, measured(9)))
    assert (found.done, found.waited_ms, found.ran_ms) == (0.0, None, None)


def test_totals_that_were_reset_count_from_zero():
    """fairlane stats --reset deletes them; a rate is never negative."""
    before, after = measured(1_000, failed=50), measured(20, failed=2)
    found = rates_between(Totals(NOW_MS, before), Totals(NOW_MS + 2_000, after))
    assert (found.done, found.failed) == (10.0, 1.0)


def test_a_clock_that_went_back_makes_no_rate():
    before, after = Totals(NOW_MS, measured(1)), Totals(NOW_MS - 1, measured(2))
    assert rates_between(before, after) == Rates()


def test_a_frame_keeps_the_tenants_with_most_leases_and_the_sum_of_the_others():
    many = [request(f"r{n}", tenant=f"t{n}", held=100 - n) for n in range(MOST_SHARES + 3)]
    frame = frame_of(1, snapshot_of(*many), Rates())
    assert len(frame.tenants) == MOST_SHARES + 1
    assert frame.tenants[OTHERS] == 88 + 87 + 86
    assert [one.id for one in frame.shares] == [f"r{n}" for n in range(MOST_SHARES)]


def test_a_frame_has_the_age_of_the_oldest_waiting_request():
    frame = frame_of(1, snapshot_of(request("r1"), after_s=2), Rates())
    assert (frame.oldest_ms, frame.lanes, frame.unfinished) == (6_000, {5: 3}, 1)
