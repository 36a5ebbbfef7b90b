"""Tests the pace of a worker: how much it finishes in a second of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.call_records import SlowCall
from fairlane.operations.holds import Holds, WorkerPace, read_holds
from fairlane.records import CallProgress
from fairlane.worker.measures import Pace
from tests.support.run.for_each import for_each
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Workers


def test_nothing_is_measured_before_something_is_finished():
    pace = Pace(4)
    assert [pace.look(second, 4, 0, 0) for second in range(3)] == [0.0, 0.0, 0.0]


def test_units_that_are_busy_count_in_full():
    pace = Pace(4)
    found = [pace.look(second, 4, 20 * second, 0) for second in range(5)]
    assert found == [0.0, 20.0, 20.0, 20.0, 20.0]


def test_units_that_are_idle_do_not_make_it_slower():
    """Half of the units worked, so all of them finish twice as many."""
    pace = Pace(4)
    assert [pace.look(second, 2, 10 * second, 0) for second in range(3)][-1] == 20.0


def test_short_calls_that_no_look_sees_are_measured_by_their_own_time():
    """One call of 1 ms a second, by one of four units: they finish 4,000 a second."""
    pace = Pace(4)
    found = [pace.look(second, 0, second, 1_000 * second) for second in range(3)]
    assert found[-1] == pytest.approx(4_000)


def test_leases_that_wait_in_a_unit_do_not_make_it_busier():
    """A unit fetches leases ahead."""
    pace = Pace(1)
    assert [pace.look(second, 30, 10 * second, 0) for second in range(3)][-1] == 10.0


def test_the_last_minute_counts():
    pace = Pace(1)
    settled = 0
    for second in range(100):
        settled += 1 if second < 30 else 100
        last = pace.look(second, 1, settled, 0)
    assert last == 100.0


def test_slow_calls_are_measured_over_a_longer_time():
    """There is one call in half a minute: the last ten count, from the end of the first one on."""
    pace = Pace(1)
    found = [pace.look(second, 1, second // 30, 0) for second in range(601)]
    assert found[-1] == pytest.approx(10 / 271)


def test_looks_in_quick_succession_are_one_sample():
    """A worker that waits for an idle queue sends ten heartbeats a second."""
    pace = Pace(1)
    found = [pace.look(0.1 * look, 1, look, 0) for look in range(11)]
    assert found[-1] == pytest.approx(10.0)
    assert found[4] == 0.0


def test_a_record_has_the_pace_between_the_leases_and_the_calls():
    calls = (CallProgress("r1", 0, 4, 30, 100),)
    holds = Holds(3, WorkerPace(4, 12.5), "0.1.0", "2026.11", calls)
    text = "3 leases; 4 units 12.500/s; fairlane 0.1.0; release 2026.11; r1#0 4 30/100"
    assert holds.text == text
    assert read_holds(text) == holds
    assert read_holds(holds._replace(release="").text).release == ""


def test_a_record_has_the_slow_calls_whatever_their_task_is_called():
    slow = [
        SlowCall("r1", 0, 7, 1, 2, 613_000, "send; mail/ä 1"),
        SlowCall("r1", 1, None, 40, 1, 11_000, None),
    ]
    text = Holds(2, slow=slow, awaits=("r3", "r4")).text
    slow_part = "r1#0 7 2 613s send%3B%20mail%2F%C3%A4%201; r1#1 -40 1 11s"
    assert text.endswith(f"; {slow_part}; waits r3 r4")
    assert read_holds(text).awaits == ("r3", "r4")
    assert read_holds(text).slow == tuple(slow)


@for_each("text", ["", "3 leases", "3 leases; r1#0 4 30/100", "4 units x/s", "\x1b["])
def test_a_record_without_a_pace_has_none(text: str):
    """An earlier release wrote it."""
    assert read_holds(text).pace == WorkerPace(0, 0.0)


@ON_SINGLE
def test_a_worker_reports_its_pace_and_why_uses_it(queue: Queue, workers: Workers):
    workers.start("echo", concurrency=3)
    queue.submit_request([b"x"] * 50).wait(PATIENCE_S)

    def per_s() -> float:
        (worker,) = queue.workers().workers
        assert worker.units == 3
        return worker.per_s or 0.0

    wait_until(lambda: per_s() > 0)
    delayed = queue.submit_request([b"x"], delay=3600)
    found = delayed.why().estimate
    assert (found.units, found.per_s > 0, found.why_not) == (3, True, None)
    delayed.cancel()
