"""Tests histograms: exact count, sum and maximum; quantiles within a bucket's width."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairlane.common.histogram import Distribution, bounds_of, bucket_of

VALUES = st.lists(st.integers(0, 10**9), min_size=1, max_size=60)


def made(values: list[int]) -> Distribution:
    found = Distribution()
    found.add(Counter(values))
    return found


@given(st.integers(0, 10**15))
def test_a_value_lies_within_the_bounds_of_its_bucket(value: int):
    low, high = bounds_of(bucket_of(value))
    assert low <= value <= high
    assert high - low <= low / 4


@given(st.integers(0, 10**15))
def test_buckets_follow_each_other_without_a_gap(value: int):
    _, high = bounds_of(bucket_of(value))
    assert bucket_of(high + 1) > bucket_of(high)
    assert bounds_of(bucket_of(high + 1))[0] == high + 1


@given(VALUES, st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_at_most_a_bucket_too_high(values: list[int], share: float):
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    found = made(values).quantile(share)
    assert exact <= found <= min(max(values), exact + exact / 4 + 1)


@given(VALUES, VALUES)
def test_merged_distributions_are_that_of_all_values(some: list[int], others: list[int]):
    assert made(some).merge([made(others)]) == made(some + others)


def test_of_nothing_everything_is_zero():
    empty = Distribution()
    assert (empty.count, empty.mean, empty.quantile(0.5), empty.max) == (0, 0.0, 0, 0)
