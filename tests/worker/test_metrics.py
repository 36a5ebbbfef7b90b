"""Tests a worker's measures: collected, sent once a second, shown by `fairlane stats`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.worker.measures import EVERY_S, Metrics
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Workers


def sent(calls: list[Any]) -> dict[str, int]:
    (call,) = calls
    _, _, *numbers = call.args  # behind the time and the most fields
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


def test_measures_are_sent_once_a_second(now: list[float]):
    """All that was collected since the last time is sent, and nothing twice."""
    measures = Metrics("req")
    measures.add(5, [100, 100], [7, 9])
    assert measures.due() == []
    now[0] += EVERY_S
    measures.add(5, [300], [8], failed=1, timeouts=2)
    found = sent(measures.due())
    assert found["5:waited:count"] == 3
    assert (found["5:ran:sum"], found["5:ran:max"]) == (24, 9)
    assert (found["5:failed"], found["5:timeouts"]) == (1, 2)
    now[0] += EVERY_S
    assert measures.due() == []


def test_an_idle_process_sends_nothing(now: list[float]):
    """Its idle time does not matter."""
    measures = Metrics("req")
    now[0] += 1000
    assert (measures.due(), measures.rest()) == ([], [])


def test_each_priority_is_measured_for_itself():
    """Each has one call."""
    measures = Metrics("req")
    measures.add(0, [1], [1])
    measures.add(99, [2], [2])
    assert len(measures.rest()) == 2
    assert measures.rest() == []


@pytest.mark.rest
@ON_SINGLE
def test_what_workers_measured_is_in_the_queues_statistics(queue: Queue, workers: Workers):
    """All of it is there when they have drained."""
    queue.submit_request([b"%d" % i for i in range(300)], limit=4, priority=7)
    queue.submit_request([b"1"] * 20, limit=2, priority=3)
    workers.run("number_batch", processes=2, concurrency=2)
    found = queue.stats()
    assert list(found) == [3, 7]
    assert (found[7].ran.count, found[7].waited.count) == (300, 300)
    assert found[3].ran.count == 20
    assert found[7].waited.max >= found[7].waited.quantile(0.5) > 0
    json.dumps(dict(found[7].waited.buckets))
