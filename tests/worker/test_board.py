"""The page of memory that a worker's processes share."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.worker import board as board_module
from fairlane.worker.board import Board, Held, Record
from tests.worker.parts import OP, record_of_its_own

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("still_clock")


def hold(record: Record, request_id: str = "r1", fence: int = 7, lease_s: float = 30.0) -> Held:
    """A lease goes to the board, acquired at second 100."""
    record.hold(request_id, "2", fence, OP, 100.0, lease_s)
    return held_by(record)


def held_by(record: Record) -> Held:
    """The lease that must be there."""
    held = record.held()
    assert held is not None
    return held


# ------------------------------------------------------------------ hold, release


def test_a_unit_that_holds_nothing_is_not_on_the_board():
    """A new board is empty."""
    board = Board(3)
    assert board.held() == []
    assert board.counts() == {"done": 0, "failed": 0, "slices": 0, "busy_us": 0}


def test_a_lease_is_read_as_it_was_written():
    """All of it comes back, with the deadline counted from the send time of the acquire."""
    board = Board(2)
    hold(board.records[1], "request.of-some:length_1")
    (held,) = board.held()
    assert (held.unit, held.request_id, held.k) == (1, "request.of-some:length_1", "2")
    assert (held.fence, held.op) == (7, OP.decode())
    assert (held.deadline, held.taken, held.lease_s) == (130.0, 100.0, 30.0)


def test_the_longest_names_fit():
    """128 characters of id, the highest permit, the highest fence; and no neighbour is touched."""
    board = Board(3)
    for record in board.records:
        record.hold("i" * 128, "9999", 2**64 - 1, OP, 1.0, 86_400.0)
        record.count(5, 6, 7, 8)
    for held in board.held():
        assert (held.request_id, held.k, held.fence) == ("i" * 128, "9999", 2**64 - 1)
        assert (held.op, held.lease_s) == (OP.decode(), 86_400.0)
    assert board.counts() == {"done": 15, "failed": 18, "slices": 21, "busy_us": 24}
    assert not any(record.attention or record.is_stopped for record in board.records)


def test_a_released_lease_is_gone():
    """Given back is not held."""
    record = record_of_its_own()
    hold(record)
    record.release()
    assert record.held() is None


def test_a_lease_is_seen_in_another_process():
    """What a forked child writes, the supervisor reads."""
    board = Board(2)
    pid = os.fork()
    if not pid:
        board.records[1].hold("r9", "0", 3, OP, 1.0, 2.0)
        board.records[1].count(4, 3, 2, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [held.request_id for held in board.held()] == ["r9"]
    assert board.counts() == {"done": 4, "failed": 3, "slices": 2, "busy_us": 1}


# ------------------------------------------------------------------ never half of it


class Watched:
    """One of the module's struct codecs: says so after every read or write."""

    def __init__(self, codec: Any, said: Callable[[], None]) -> None:
        self.codec, self.said = codec, said

    def pack_into(self, *given: Any) -> None:
        """Writes, then says so."""
        self.codec.pack_into(*given)
        self.said()

    def unpack_from(self, *given: Any) -> Any:
        """Reads, then says so."""
        found = self.codec.unpack_from(*given)
        self.said()
        return found


class Interruption:
    """Calls `act` once, after the n-th access to the page, and not while it acts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen, self.at, self.act = count(), -1, lambda: None
        for name in ("_VERSION", "_LEASE", "_U64", "_F64"):
            watched = Watched(getattr(board_module, name), self.said)
            monkeypatch.setattr(board_module, name, watched)

    def arm(self, at: int, act: Callable[[], Any]) -> None:
        """From now on, `act` after access number `at`."""
        self.seen, self.at, self.act = count(), at, act

    def said(self) -> None:
        """One access."""
        if next(self.seen) == self.at:
            self.seen = count(-(10**9))
            self.act()


def is_whole(held: Held | None) -> bool:
    """Tell a lease that was written from a mixture of two."""
    leases = {
        None,
        ("first", 7, 130.0, 30.0),
        ("another request", 9, 160.0, 60.0),
    }
    seen = held and (held.request_id, held.fence, held.deadline, held.lease_s)
    return seen in leases


@pytest.mark.parametrize("at", range(4))
def test_a_half_written_lease_is_not_seen(at: int, monkeypatch: pytest.MonkeyPatch):
    """Whenever the supervisor looks while a unit writes, it sees a whole lease or none."""
    record, seen = record_of_its_own(), []
    hold(record, "first")
    interruption = Interruption(monkeypatch)
    interruption.arm(at, lambda: seen.append(record.held()))
    record.hold("another request", "2", 9, OP, 100.0, 60.0)
    interruption.arm(-1, lambda: None)
    assert len(seen) == 1
    assert is_whole(seen[0])
    assert is_whole(held_by(record))
    assert held_by(record).fence == 9


@pytest.mark.parametrize("at", range(4))
def test_a_lease_that_changes_while_it_is_read_is_read_again(
    at: int, monkeypatch: pytest.MonkeyPatch
):
    """Whenever a unit goes on to another lease while the supervisor looks, nothing is mixed."""
    record = record_of_its_own()
    hold(record, "first")
    interruption = Interruption(monkeypatch)
    interruption.arm(at, lambda: record.hold("another request", "2", 9, OP, 100.0, 60.0))
    held = record.held()
    assert is_whole(held)
    interruption.arm(-1, lambda: None)
    assert held_by(record).fence == 9


def test_a_process_that_died_while_it_wrote_holds_nothing():
    """Its half-written lease is not believed, and the next process writes over it."""
    record = record_of_its_own()
    hold(record)
    record._page[record._at] |= 1
    assert record.held() is None
    assert hold(record, "next").request_id == "next"


# ------------------------------------------------------------------ extended, stop


def test_an_extension_moves_the_deadline_for_both_sides():
    """The supervisor and the handler's context see the later deadline."""
    record = record_of_its_own()
    held = hold(record)
    assert record.deadline == 130.0
    record.extended(held, 150.0)
    assert held_by(record).deadline == record.deadline == 150.0


def test_an_extension_never_brings_the_deadline_forward():
    """The later of the two counts: both were granted."""
    record = record_of_its_own()
    record.extended(hold(record), 120.0)
    assert held_by(record).deadline == record.deadline == 130.0


@pytest.mark.parametrize("fence", [7, 8])
def test_an_extension_of_an_older_lease_is_not_the_newer_ones(fence: int):
    """Fences are numbered by request: a second request's lease may have the same one."""
    record = record_of_its_own()
    older = hold(record, "r1", 7, lease_s=900.0)
    record.release()
    hold(record, "r2", fence, lease_s=1.0)
    record.extended(older, 2_000.0)
    assert held_by(record).deadline == record.deadline == 101.0


def test_a_stop_is_for_the_lease_it_names():
    """It calls for attention and tells the handler."""
    record = record_of_its_own()
    held = hold(record)
    before = (record.attention, record.is_stopped)
    record.stop(held)
    assert (before, record.attention, record.is_stopped) == ((False, False), True, True)


@pytest.mark.parametrize("fence", [7, 8])
def test_a_stop_of_an_older_lease_does_not_stop_a_newer_one(fence: int):
    """Not even when both requests count from one and so have the same fence."""
    record = record_of_its_own()
    older = hold(record, "r1", 7)
    record.stop(older)
    record.release()
    assert not record.is_stopped
    hold(record, "r2", fence)
    assert not record.is_stopped
    record.stop(older)
    assert not record.is_stopped


def test_attention_ends_when_it_was_heard():
    """The one byte that is read after every call is cleared; the stop itself stands."""
    record = record_of_its_own()
    record.stop(hold(record))
    record.heard()
    assert not record.attention
    assert record.is_stopped


def test_draining_calls_every_unit_and_never_ends():
    """It is not a word to one lease: hearing it does not clear it."""
    board = Board(2)
    before = board.is_draining
    board.drain()
    assert (before, board.is_draining) == (False, True)
    for record in board.records:
        record.heard()
        assert record.attention
        assert record.is_draining
        assert not record.is_stopped


# ------------------------------------------------------------------ counts


def test_counts_add_up_over_units():
    """Each unit adds to its own record; the board adds the records."""
    board = Board(2)
    board.records[0].count(1, 2, 3, 4)
    board.records[0].count(10)
    board.records[1].count(100, 200)
    assert board.records[0].counts() == {"done": 11, "failed": 2, "slices": 3, "busy_us": 4}
    assert board.counts() == {"done": 111, "failed": 202, "slices": 3, "busy_us": 4}


def test_a_lease_that_has_all_but_expired_is_stopped(monkeypatch: pytest.MonkeyPatch):
    """The handler is told by the clock alone: its supervisor may not reach Redis."""
    record = Board(1).records[0]
    record.hold("r1", "0", 7, OP, 100.0, 30.0)
    monkeypatch.setattr("fairlane.clock.mono_s", lambda: 126.9)
    assert not record.is_stopped
    monkeypatch.setattr("fairlane.clock.mono_s", lambda: 127.1)
    assert record.is_stopped


@pytest.mark.parametrize("begin", [True, False])
def test_a_unit_waits_until_it_may_begin(*, begin: bool):
    """After a death with several leases only one unit of the process goes on."""
    board = Board(2)
    board.records[1].wait(begin=False)
    board.records[1].wait(begin=begin)
    assert [record.is_waiting for record in board.records] == [False, not begin]
