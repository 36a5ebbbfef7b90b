"""Tests the bucket of a rate: never more than burst + rate x time, and the shortest waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane

BUCKET = keys.bucket("key/api")
RATE = {"interval": 10_000, "burst": 5, "weight": 1}  # 100 a second


def take(lane: Lane, want: int = 1, *, waited: bool = False, **rate: int) -> list[int]:
    taken: list[int] = lane.call(
        "take", (BUCKET,), want=want, waited="1" if waited else "", **RATE | rate
    )
    return taken


def refund(lane: Lane, unused: int) -> Any:
    return lane.call("refund", (BUCKET,), unused=unused, **RATE)


def hold(lane: Lane, ms: int, **rate: int) -> Any:
    return lane.call("hold_rate", (BUCKET,), ms=ms, **RATE | rate)


def test_a_full_bucket_gives_its_burst_and_then_one_each_interval(one: Lane):
    assert take(one, 9) == [5, 0]
    assert take(one) == [0, 10]
    one.now += 10
    assert take(one, waited=True) == [1, 0]


def test_those_that_wait_are_given_one_interval_each(one: Lane):
    take(one, 5)
    assert [take(one) for _ in range(4)] == [[0, 10], [0, 20], [0, 30], [0, 40]]


def test_a_later_caller_does_not_overtake_those_that_wait(one: Lane):
    take(one, 5)
    assert take(one) == [0, 10]
    assert take(one) == [0, 20]
    one.now += 10
    assert take(one) == [0, 20]
    assert take(one, waited=True) == [1, 0]


def test_a_caller_that_never_waits_takes_no_place_in_the_line(one: Lane):
    take(one, 5)
    for _ in range(50):
        asked = one.call("take", (BUCKET,), want=1, waited="2", **RATE)
        assert asked == [0, 10]
    assert take(one) == [0, 10]
    one.now += 10
    assert one.call("take", (BUCKET,), want=1, waited="2", **RATE) == [1, 0]


def test_those_that_wait_and_do_not_come_keep_the_others_for_their_turn_only(one: Lane):
    take(one, 5)
    take(one)
    one.now += 11
    assert take(one) == [1, 0]


def test_a_wait_for_several_lasts_until_half_the_burst_is_there(one: Lane):
    take(one, 5)
    assert take(one, 100) == [0, 20]
    one.now += 20
    assert take(one, 100, waited=True) == [2, 0]


def test_a_long_line_asks_again_after_half_a_minute(one: Lane):
    take(one, 5)
    waits = [take(one)[1] for _ in range(3_100)]
    assert max(waits) == 30_000


@pytest.mark.rest
def test_a_line_that_was_left_delays_the_others_for_half_a_minute_at_most(one: Lane):
    take(one, 5)
    for _ in range(100):  # a hundred ask, wait, and ask again
        for _ in range(100):
            take(one, waited=True)
        one.now += 1
    one.now += 30_000
    assert take(one, 9) == [5, 0]


@for_each("back_ms", [1, 3_600_000])
def test_a_clock_that_goes_back_neither_closes_the_bucket_nor_fills_it(one: Lane, back_ms: int):
    take(one, 5)
    one.now -= back_ms
    assert take(one) == [0, 10]
    one.now += 10
    assert take(one, 9, waited=True) == [1, 0]


def test_a_hold_is_as_long_as_before_after_the_clock_went_back(one: Lane):
    hold(one, 30_000)
    one.now -= 3_600_000
    assert take(one)[0] == 0
    one.now += 29_999
    assert take(one, waited=True)[0] == 0
    one.now += 1
    assert take(one, 9, waited=True) == [1, 0]


def test_a_heavy_sub_request_counts_for_its_weight(one: Lane):
    assert take(one, 9, weight=2) == [2, 0]
    assert take(one, 9, weight=2) == [0, 10]


def test_what_is_returned_may_be_taken_again_and_no_more(one: Lane):
    take(one, 5)
    refund(one, 3)
    assert take(one, 9) == [3, 0]
    refund(one, 900)
    assert take(one, 9) == [5, 0]


def test_a_held_bucket_gives_nothing_until_the_time_is_over(one: Lane):
    hold(one, 30_000)
    assert take(one)[0] == 0
    one.now += 29_999
    assert take(one, waited=True)[0] == 0
    one.now += 1
    assert take(one, 9, waited=True) == [1, 0]


def refit(lane: Lane, **rate: int) -> Any:
    return lane.call("refit", (BUCKET,), **RATE | rate)


def test_neither_what_is_returned_nor_another_rate_shortens_a_hold(one: Lane):
    take(one, 5)
    hold(one, 30_000)
    refund(one, 4)
    refit(one)
    one.now += 29_999
    assert take(one, 9, waited=True)[0] == 0
    one.now += 1
    assert take(one, 9, waited=True) == [1, 0]
    refund(one, 1)
    assert take(one, 9, waited=True) == [1, 0]


def test_a_rate_goes_on_without_a_burst_long_after_a_hold(one: Lane):
    slow: Any = {"interval": 1_000_000, "burst": 10}
    hold(one, 1_000, **slow)
    one.now += 3_000
    assert take(one, 9, waited=True, **slow) == [3, 0]


def test_a_hold_is_forgotten_when_the_burst_is_there_again(one: Lane):
    hold(one, 1_000)
    assert 1_000 < one.client.pttl(BUCKET) <= 2_050
    one.now += 1_050
    take(one)
    assert one.client.get(BUCKET).endswith(b":0")


def test_what_a_slow_rate_has_taken_does_not_close_a_faster_one(one: Lane):
    slow: Any = {"interval": 3_600_000_000, "burst": 1}
    assert take(one, 9, **slow) == [1, 0]
    take(one, **slow)
    assert refit(one) == 1
    assert take(one) == [0, 10]
    one.now += 10
    assert take(one, 9, waited=True) == [1, 0]


def test_another_rate_brings_no_second_burst(one: Lane):
    take(one, 5)
    for _ in range(2):
        refit(one)
        assert take(one, waited=True)[0] == 0


def test_a_second_hold_never_shortens_the_first(one: Lane):
    hold(one, 30_000)
    hold(one, 10)
    one.now += 10_000
    assert take(one, waited=True)[0] == 0


def test_a_bucket_that_is_full_again_leaves_no_key(one: Lane):
    take(one, 5)
    assert 0 < one.client.pttl(BUCKET) <= 1_050


@for_each(
    "wrong",
    [
        *({"interval": 0}, {"interval": "x"}, {"burst": 0}, {"burst": "x"}),
        *({"weight": 6}, {"weight": 0}, {"weight": "x"}),
    ],
)
@for_each("script", ["take", "refund", "refit", "hold_rate"])
def test_a_rate_that_is_none_is_refused(one: Lane, script: str, wrong: dict[str, Any]):
    rest: dict[str, dict[str, Any]] = {
        "take": {"want": 1, "waited": ""},
        "refund": {"unused": 1},
        "refit": {},
        "hold_rate": {"ms": 1},
    }
    with pytest.raises(InvalidArgument, match="BADARGUMENT an interval"):
        one.call(script, (BUCKET,), **RATE | rest[script] | wrong)


@for_each("number", [0, 1_001, "x"])
def test_a_number_of_sub_requests_out_of_range_is_refused(one: Lane, number: Any):
    with pytest.raises(InvalidArgument, match="BADCOUNT"):
        take(one, number)
    with pytest.raises(InvalidArgument, match="BADCOUNT"):
        refund(one, number)


@for_each("ms", [0, 86_400_001, "x"])
def test_a_hold_out_of_range_is_refused(one: Lane, ms: Any):
    with pytest.raises(InvalidArgument, match="BADARGUMENT 1 ms to a day"):
        hold(one, ms)


def test_what_is_damaged_counts_as_a_full_bucket(one: Lane):
    one.client.set(BUCKET, b"nonsense")
    assert take(one, 9) == [5, 0]
