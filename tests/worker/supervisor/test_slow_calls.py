"""Tests which calls a worker names in its heartbeats because they run for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.common import clock
from fairlane.worker.board import LeaseBoard
from fairlane.worker.slow_calls import SlowCalls

if TYPE_CHECKING:
    from fairlane.worker.board import LeaseRecord

NAMES = ["send_mail", "resize", ""]


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 100_000.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    found = Now()
    monkeypatch.setattr(clock, "mono_s", lambda: found.s)
    return found


def run(record: LeaseRecord, began_s: float, task: str = "send_mail", index: int = 7) -> None:
    """Lets a call begin under a lease."""
    taken = clock.mono_s()
    record.hold("monday", "1", 5, b"op", taken, 30.0, index=index, attempt=2, attempts=5)
    record.take_turn()
    record.call.entry_id = f"1700000000000-{index}".encode() if index >= 0 else b""
    record.call.start = f'[1,"{task}",{{'.encode() if task else b"a line"
    record.call.began_ns = int(began_s * 1e9)


def test_calls_of_ten_seconds_and_more_are_named_the_longest_first(now: Now):
    board = LeaseBoard(4)
    run(board.records[0], now.s - 9.9)
    run(board.records[1], now.s - 10.1, index=1)
    run(board.records[2], now.s - 600, "", index=-40)
    found = SlowCalls(board).look(board.held())
    assert [(one.id, one.permit, one.index, one.count, one.attempt) for one in found] == [
        ("monday", 1, None, 40, 2), ("monday", 1, 1, 1, 2),
    ]  # fmt: skip
    assert [(one.task, one.ran_ms // 1000) for one in found] == [(None, 600), ("send_mail", 10)]
    board.records[1].rest()
    assert len(SlowCalls(board).look(board.held())) == 1


def test_of_each_task_three_are_named_so_that_others_are_seen(now: Now):
    board = LeaseBoard(9)
    for at, record in enumerate(board.records[:8]):
        run(record, now.s - 7200 - at, "report")
    run(board.records[8], now.s - 60, "send_mail")
    found = SlowCalls(board).look(board.held())
    assert [(one.task, one.ran_ms // 1000) for one in found] == [
        ("report", 7207), ("report", 7206), ("report", 7205), ("send_mail", 60),
    ]  # fmt: skip


def test_a_call_that_reports_further_progress_is_not_named(now: Now):
    board = LeaseBoard(1)
    slow = SlowCalls(board)
    run(board.records[0], now.s - 3600)
    board.records[0].report(7, 30, 100)
    assert slow.look(board.held()) == []
    now.s += 50
    board.records[0].report(7, 31, 100)
    assert slow.look(board.held()) == []
    now.s += 59
    assert slow.look(board.held()) == []
    now.s += 2
    assert [one.index for one in slow.look(board.held())] == [7]
    board.records[0].report(8, 1, 100)  # of another sub-request of the lease
    assert [one.index for one in slow.look(board.held())] == [7]
