"""Tests the rate of a whole queue by the blocking and the asyncio API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.common.rate import Rate
from fairlane.errors import InvalidArgument
from fairlane.operations.rates import parse_queue_rate, read_queue_rate
from fairlane.protocol import keys
from tests.support.both_faces import both_faces
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue

BUCKET = keys.bucket("queue/req")


@both_faces
def test_a_queue_has_a_rate_another_one_and_none(queue: Queue):
    queue.set_rate("100/s", 10)
    assert queue.driver.run(read_queue_rate("req")) == Rate("queue/req", 10_000, 5, 1)
    assert queue.status().rate == "100/s"
    queue.set_rate("30/m")
    assert queue.status().rate == "30/m"
    queue.set_rate(None)
    assert queue.driver.run(read_queue_rate("req")) is None
    assert queue.status().rate is None


@for_each(
    "given, sentence",
    [
        (("100",), r"rate '100' is not valid: write a rate such as 100/s, 30/m or 5/h"),
        (("0/s",), r"rate '0/s' is not valid"),
        (("100/s", 0), r"burst 0 is not valid: a whole number from 1 to 1,000,000"),
        ((7,), r"rate 7 is not valid"),
        ((None, 5), r"burst needs a rate: give rate, too, as 100/s"),
    ],
)
def test_what_is_no_rate_is_refused_before_anything_is_written(
    queue: Queue, redis_client: redis.Redis, given: Any, sentence: str
):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.set_rate(*given)
    assert not redis_client.exists(keys.conf("req"))


def test_a_faster_rate_does_not_wait_for_what_a_slower_one_owes(
    queue: Queue, redis_client: redis.Redis
):
    queue.set_rate("1/h", 1)
    now_s, us = redis_client.time()
    now_us = int(now_s) * 1_000_000 + int(us)
    redis_client.set(BUCKET, f"{now_us + 3_600_000_000}:0:{now_us}:0")
    queue.set_rate("100/s", 10)
    bucket: Any = redis_client.get(BUCKET)
    assert int(bucket.split(b":")[0]) < now_us + 60_000_000


@for_each("stored", [None, b"", b"5", b"0 0", b"5 x", b"1 2 3", b"1 " + b"9" * 30])
def test_what_no_release_wrote_is_no_rate(stored: bytes | None):
    assert parse_queue_rate("req", stored) is None
