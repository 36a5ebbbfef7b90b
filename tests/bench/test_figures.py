"""Tests the calculations of the published figures."""

from __future__ import annotations

import pytest
from bench.pages import figures


def calls(tag: int, start: float, count: int, each: float = 1.0) -> list[list[float]]:
    return [[tag, start + i * each, start + (i + 1) * each] for i in range(count)]


def test_equal_worker_time_is_perfectly_fair():
    records = calls(0, 0, 10) + calls(1, 0, 10)
    assert figures.jain(records, [20, 10], 1.0) == pytest.approx(1.0)


def test_one_request_with_all_the_workers_is_as_unfair_as_can_be():
    records = calls(0, 0, 10) + calls(1, 10, 10)
    assert figures.jain(records, [10, 10], 1.0) == pytest.approx(0.5)


def test_work_after_the_first_end_does_not_count():
    records = calls(0, 0, 10) + calls(1, 0, 40)
    assert figures.jain(records, [10, 40], 1.0) == pytest.approx(1.0)


def test_a_call_that_is_under_way_counts_until_then():
    records = [*calls(0, 0, 10), [1, 0.0, 30.0]]
    assert figures.jain(records, [10, 5], 1.0) == pytest.approx(1.0)


def test_no_end_is_no_figure():
    assert figures.jain(calls(0, 0, 9), [10], 1.0) is None


def test_an_even_pace_gives_equal_stretches_and_the_handlers_that_were_busy():
    seen = [[i * 0.1, i * 10.0, i * 0.4] for i in range(101)]
    rates, busy = figures.steady(seen)
    assert rates == pytest.approx([100.0] * 5)
    assert busy == pytest.approx(4.0)


def test_too_few_calls_are_not_cut_into_stretches():
    assert figures.steady([[i * 0.1, float(i), 0.0] for i in range(40)]) == ([], None)


def test_the_median_and_the_worst_of_the_waits():
    answer = {"asked": [[1.0, 1.004], [2.0, 2.002]], "starts": [1.001, 2.0005]}
    waits = figures.waits(answer)
    assert waits["start"] == pytest.approx([1.0, 0.5])
    assert waits["known"] == pytest.approx([4.0, 2.0])
    assert figures.percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert figures.percentile([], 0.5) is None


def test_a_question_without_an_answer_has_no_wait():
    assert figures.waits({"asked": [1.0, 2.0], "starts": [1.5]}) == {"start": [500.0], "known": []}
