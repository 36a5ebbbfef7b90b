"""Tests rates as text, and the part of a burst that is held back."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane import InvalidArgument
from fairlane.common.rate import Rate, Shared, parse_rates, rate_of, rates_text
from tests.support.run.for_each import for_each

API = Shared("req", "api")


@for_each(
    "text, interval_us",
    [("100/s", 10_000), ("30/m", 2_000_000), ("5/h", 720_000_000), ("0.5/s", 2_000_000)],
)
def test_a_rate_has_an_interval(text: str, interval_us: int):
    assert rate_of(text).interval_us == interval_us


@for_each("number", [3, 7, 999, 1_300, 19_999, 700_000])
def test_a_rate_that_fits_no_whole_interval_is_slower_never_faster(number: int):
    assert number * 0.71 < 1_000_000 / rate_of(f"{number}/s").interval_us <= number


def test_a_twentieth_of_a_second_of_the_rate_is_kept_back_from_the_burst():
    assert rate_of("100/s", 10).burst == 5
    assert rate_of("100/s", 3).burst == 1
    assert rate_of("1/s", 10).burst == 9


def test_the_burst_is_by_default_what_a_tenth_of_a_second_allows():
    assert rate_of("1000/s").burst == 50
    assert rate_of("5/h").burst == 1


def test_a_faster_rate_has_more_tokens_on_their_way():
    assert [rate_of(text).width for text in ("100/s", "101/s", "1000/s", "5/h")] == [1, 2, 10, 1]
    assert rate_of("1000/s", 100, weight=5).width == 2


def test_rates_survive_as_text():
    rates = (rate_of("100/s", 10), Rate("key/req/api/7/5", 7, 5, 2))
    assert rates_text(rates) == "1 = 10000 5 1 key/req/api/7/5 7 5 2"
    assert parse_rates(rates_text(rates)) == rates
    assert parse_rates("") == ()


@for_each(
    "rate, words",
    [
        (rate_of("100/s"), "100/s"),
        (rate_of("30/m", shared=API), "30/m, shared as api"),
        *((rate_of(text), text) for text in ("3/s", "999/s", "1300/s", "0.7/h", "7.25/s")),
        (rate_of("700000/s"), "500000/s"),
        (rate_of("5/h", 9, 2), "5/h, each counts for 2"),
    ],
)
def test_rates_are_shown_as_text(rate: Rate, words: str):
    assert rate.words == words


@for_each(
    "given, sentence",
    [
        (("5",), "write a rate such as 100/s, 30/m or 5/h"),
        (("0/s",), "write a rate such as"),
        (("-1/s",), "write a rate such as"),
        ((5,), "write a rate such as"),
        (("2000000/s",), "1/24h to 1,000,000/s"),
        (("0.01/h",), "1/24h to 1,000,000/s"),
        (("5/s", 0), "burst 0 is not valid"),
        (("5/s", True), "burst True is not valid"),
        (("5/s", 3, 4), "weight 4 is not valid: with a burst of 3"),
        (("5/s", 3, 0), "weight 0 is not valid"),
        (("1/h", 100, 25), "for more than a day; give a weight of at most 24, or a faster rate"),
        (("1/h", 10_000), "burst 10,000 is not valid: .* give a burst of at most 8,784"),
        (("10/m", None, 2, API), "weight 2 is not valid: with a burst of 1"),
    ],
)
def test_what_is_no_rate_is_refused(given: Any, sentence: str):
    with pytest.raises(InvalidArgument, match=sentence):
        rate_of(*given)


def test_a_bucket_is_shared_by_one_queue_one_key_one_rate_and_one_burst():
    same = rate_of("100/s", 20, 1, API)
    assert rate_of("6000/m", 20, 7, API).bucket == same.bucket
    others = [
        rate_of("100/s", 20, 1, Shared("other", "api")),
        rate_of("100/s", 20, 1, Shared("req", "other")),
        rate_of("99/s", 20, 1, API),
        rate_of("100/s", 21, 1, API),
        rate_of("100/s", 20),
    ]
    assert same.bucket not in {one.bucket for one in others}
    assert len({one.bucket for one in others}) == len(others)


def test_a_weight_leaves_the_bucket_as_it_is():
    rate = rate_of("100/s", 20, 1, API)
    assert rate.with_weight(18) == rate_of("100/s", 20, 18, API)
    with pytest.raises(InvalidArgument, match="weight 21 is not valid: with a burst of 20"):
        rate.with_weight(21)
    assert rate_of("100/s", 20).with_weight(21).burst == 21


def test_a_rate_that_is_shared_follows_its_request_to_another_queue():
    assert rate_of("5/h", 1, 1, API).in_queue("b") == rate_of("5/h", 1, 1, Shared("b", "api"))
    assert rate_of("5/h").in_queue("b") == rate_of("5/h")
