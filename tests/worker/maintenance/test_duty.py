"""Tests a duty: it runs when it is due, in a thread of its own, and continues after a failure."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import NodeAway, RedisUnreachable
from fairlane.worker.leader import NEVER, Beat, Duty
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LATER = 3600.0


class Work:
    """The work of a duty: it counts its runs, waits if it must, then returns or raises."""

    def __init__(self) -> None:
        self.runs = 0
        self.result: float | Exception = NEVER
        self.may_end = threading.Event()
        self.may_end.set()
        self.ended = threading.Semaphore(0)

    def __call__(self) -> float:
        self.runs += 1
        assert self.may_end.wait(PATIENCE_S)
        self.ended.release()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def work(now: list[float]) -> Work:
    return Work()


def due_by_beat(beat: Beat) -> float:
    """Makes a duty due as soon as a request is due."""
    return beat.moment(beat.active_due)


@pytest.fixture
def duty(work: Work) -> Iterator[Duty]:
    made = Duty("example", due_by_beat, work)
    yield made
    work.may_end.set()
    made.close()
    made.join(20)


def has_run(duty: Duty, work: Work, count: int = 1) -> None:
    """Waits until it has run so often, and waits again."""
    wait_until(lambda: work.runs == count and duty.at == NEVER, why=f"it runs {count} times")


def test_a_duty_that_was_never_due_has_no_thread(duty: Duty):
    duty.set(NEVER)
    duty.due(NEVER)
    assert duty.at == NEVER
    assert "example" not in {thread.name for thread in threading.enumerate()}


def test_what_is_due_runs_once(duty: Duty, work: Work):
    """Afterwards it is not due."""
    duty.due(100.0)
    has_run(duty, work)


def test_what_is_due_later_does_not_run_before(duty: Duty, work: Work, now: list[float]):
    """`due` moves the moment nearer, and never later."""
    for at in (now[0] + LATER, now[0] + 2 * LATER, now[0] + LATER / 2):
        duty.due(at)
    assert (duty.at, work.runs) == (now[0] + LATER / 2, 0)
    duty.due(now[0])
    has_run(duty, work)


def test_set_moves_the_moment_both_ways(duty: Duty, work: Work, now: list[float]):
    for at in (now[0] + LATER, now[0] + 2 * LATER, NEVER):
        duty.set(at)
        assert duty.at == at
    duty.set(now[0])
    has_run(duty, work)


def test_its_work_returns_the_next_moment(duty: Duty, work: Work, now: list[float]):
    work.result = now[0] + LATER
    duty.due(now[0])
    wait_until(lambda: duty.at == now[0] + LATER, why="it is due again")
    assert work.runs == 1


def test_an_earlier_moment_that_was_set_meanwhile_is_kept(duty: Duty, work: Work, now: list[float]):
    """The return value makes it due no later."""
    work.may_end.clear()
    work.result = now[0] + 2 * LATER
    duty.due(now[0])
    wait_until(lambda: work.runs == 1, why="it runs")
    duty.due(now[0] + LATER)
    work.may_end.set()
    assert work.ended.acquire(timeout=PATIENCE_S)
    assert duty.at == now[0] + LATER


def test_what_is_due_while_it_runs_follows(duty: Duty, work: Work, now: list[float]):
    """However often it was made due, it runs once more, and never twice at the same time."""
    work.may_end.clear()
    duty.due(now[0])
    wait_until(lambda: work.runs == 1, why="it runs")
    for _ in range(3):
        duty.due(now[0])
    assert work.runs == 1
    work.may_end.set()
    has_run(duty, work, 2)


@pytest.mark.parametrize("error", [RedisUnreachable("no answer"), ValueError("not ours")], ids=repr)
def test_a_failure_is_logged_and_the_duty_goes_on(
    duty: Duty, work: Work, now: list[float], caplog: pytest.LogCaptureFixture, error: Exception
):
    """An error of Redis is a sentence; anything else is a defect with its traceback."""
    work.result = error
    for count in (1, 2):
        now[0] += 61.0
        duty.due(0.0)
        wait_until(lambda: len(caplog.records) == count, why="it fails")  # noqa: B023
    assert {record.message for record in caplog.records} == {
        "no answer; trying again"
        if isinstance(error, RedisUnreachable)
        else "example failed; trying again"
    }
    assert all(bool(one.exc_info) == isinstance(error, ValueError) for one in caplog.records)


def test_a_node_that_is_away_is_logged_once_in_thirty_seconds_and_the_next_time_again(
    duty: Duty, work: Work, now: list[float], caplog: pytest.LogCaptureFixture
):
    looks: list[tuple[float, float | Exception, int]] = [
        (0.0, NodeAway("no answer"), 1),
        (29.0, NodeAway("no answer"), 1),
        (29.5, NodeAway("another node is away"), 2),
        (31.0, NodeAway("no answer"), 3),
        (32.0, NEVER, 3),
        (33.0, NodeAway("no answer"), 4),
    ]
    for count, (seconds, result, logged) in enumerate(looks, 1):
        now[0], work.result = 100.0 + seconds, result
        duty.due(0.0)
        has_run(duty, work, count)
        assert len(caplog.records) == logged


def test_close_ends_the_thread_after_the_call_it_is_in(duty: Duty, work: Work):
    """Nothing else begins, whatever is due."""
    work.may_end.clear()
    duty.due(0.0)
    wait_until(lambda: work.runs == 1, why="it runs")
    duty.due(0.0)
    duty.close()
    work.may_end.set()
    duty.join(20)
    assert work.runs == 1


@pytest.mark.parametrize("follows", [False, True])
def test_a_beat_puts_off_only_a_duty_that_follows_beats(
    work: Work, now: list[float], *, follows: bool
):
    """The server's clock counts; a heartbeat at which nothing is due postpones it for ever."""
    duty = Duty("example", due_by_beat, work, follows_beats=follows)
    moments = []
    for due_ms in (5_000, 9_000, 0, 3_000):
        duty.next(Beat(2_000, due_ms, 0, 0, 0))
        moments.append(duty.at - now[0])
    assert moments == ([3.0, 7.0, NEVER, 1.0] if follows else [3.0, 3.0, 3.0, 1.0])
    duty.close()
    duty.join(20)


def test_what_is_closed_begins_nothing(duty: Duty, work: Work):
    duty.close()
    duty.due(0.0)
    duty.join(20)
    assert work.runs == 0


def test_a_pause_ends_with_its_time_or_with_the_duty(duty: Duty):
    """It returns whether the duty was closed."""
    assert duty.pause(0.0) is False
    found: list[Any] = []
    resting = threading.Thread(target=lambda: found.append(duty.pause(60)))
    resting.start()
    duty.close()
    resting.join(20)
    assert found == [True]
    assert duty.pause(60) is True
