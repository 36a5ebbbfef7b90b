"""Tests the pause of a queue by the blocking and the asyncio API."""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations.pause import QueuePause, read_pause, resume_queue
from tests.support.both_faces import both_faces
from tests.support.operations.lost_replies import Forgetful
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from fairlane.queue import Queue


@both_faces
def test_a_queue_is_paused_and_resumed(queue: Queue):
    pause = queue.pause(for_s=600)
    assert (pause.is_paused, pause.until_ms) == (True, pause.now_ms + 600_000)
    assert queue.driver.run(read_pause("req")).paused_until == pause.paused_until
    assert queue.pause().until_ms is None
    assert (queue.status().is_paused, queue.status().paused_until_ms) == (True, None)
    assert [queue.resume(), queue.resume()] == [True, False]
    assert not queue.driver.run(read_pause("req")).is_paused


@for_each("for_s", [0, -1, nan, inf, 366 * 86_400, True, "10m"])
def test_a_period_that_is_not_valid_is_refused_before_anything_is_written(queue: Queue, for_s: Any):
    with pytest.raises(InvalidArgument, match=r"for_s .* is not valid: more than 0 seconds"):
        queue.pause(for_s=for_s)
    assert not queue.status().is_paused


@for_each(
    "until, text",
    [
        (0, "not paused"),
        (1_000, "not paused"),
        (10**15, "paused until it is resumed"),
        (61_000, "paused until 1970-01-01 00:01:01 UTC (in 60 s)"),
    ],
)
def test_a_pause_has_a_readable_text(until: int, text: str):
    assert QueuePause(until, 1_000).text == text


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_resume_whose_replies_are_lost_reports_that_the_queue_was_paused(queue: Queue, lost: int):
    queue.pause()
    assert Forgetful(queue.driver, None, lost).run(resume_queue("req")) is True
    assert Forgetful(queue.driver, None, lost).run(resume_queue("req")) is False
    assert not queue.driver.run(read_pause("req")).is_paused
