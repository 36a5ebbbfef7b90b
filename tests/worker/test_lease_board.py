"""Tests the lease board, which is the page of memory that a worker's processes share."""

from __future__ import annotations

import math
import os
import threading
from ctypes import Array, Structure, addressof, alignment, memset, sizeof
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.model import Token
from fairlane.records import CallProgress
from fairlane.worker.board import (
    COUNTS,
    SHARDS_MOST,
    Counts,
    LeaseBoard,
    LeaseRecord,
    RecordFields,
    WorkerFields,
)
from tests.support.run.for_each import for_each
from tests.worker.parts import OP, record_of_its_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.worker.board import Held, Running

pytestmark = pytest.mark.usefixtures("still_clock")


def hold(
    record: LeaseRecord, request_id: str = "r1", fence: int = 7, lease_s: float = 30.0
) -> Held:
    """Puts a lease on the board, acquired at second 100."""
    record.hold(request_id, "2", fence, OP, 100.0, lease_s)
    return held_by(record)


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    """Returns the counts that are not zero."""
    return {name: count for name, count in counts.items() if count}


def held_by(record: LeaseRecord) -> Held:
    """Returns the lease, which must be there."""
    held = record.held()
    assert held is not None
    return held


# ------------------------------------------------------------------ layout


@pytest.mark.parametrize("layout", [WorkerFields, RecordFields, Counts], ids=lambda it: it.__name__)
def test_each_number_is_aligned_so_that_one_store_writes_it(layout: type[Structure]):
    """In the second record, too: the head and a record are multiples of eight bytes."""
    assert sizeof(layout) % 8 == 0
    for name, kind, *_ in layout._fields_:
        assert getattr(layout, name).offset % alignment(kind) == 0
        is_number = not issubclass(kind, (Array, Structure))
        assert not is_number or alignment(kind) == sizeof(kind)


def test_records_follow_each_other_without_overlap():
    """A lease that fills its record does not change any byte of the others and of the head."""
    board = LeaseBoard(3)
    end = sizeof(WorkerFields) + sizeof(RecordFields)
    memset(addressof(board.records[1]._fields), 0xFF, sizeof(RecordFields))
    page = bytes(board._page)
    assert len(page) >= sizeof(WorkerFields) + 3 * sizeof(RecordFields)
    assert page[:end].strip(b"\0") == b""
    assert page[end : end + sizeof(RecordFields)] == b"\xff" * sizeof(RecordFields)
    assert page[end + sizeof(RecordFields) :].strip(b"\0") == b""


def test_flags_are_found_on_the_page_by_their_offset():
    """A supervisor reads one byte a record, not thousands of records."""
    board = LeaseBoard(2, 3)
    for unit in (1, 4):
        hold(board.records[unit])
    board.records[3].begin_acquire(Token("r1", "2", "17"), OP)
    board.records[3].end_acquire(is_abandoned=True)
    assert [held.unit for held in board.held()] == [1, 4]
    assert board.abandoned() == [board.records[3]]


def test_a_reader_in_another_process_sees_no_torn_number():
    """Each read is the old or the new value, however often the writer writes."""
    board = LeaseBoard(1)
    fields, values = board.records[0]._fields, {0, 2**64 - 1}
    pid = os.fork()
    if not pid:
        for _ in range(20_000):
            fields.stopped_version = 2**64 - 1
            fields.stopped_version = 0
        board.drain()
        os._exit(0)
    seen = {0}
    while not board.is_draining:
        seen.add(fields.stopped_version)
    os.waitpid(pid, 0)
    assert seen <= values


def test_the_shards_of_a_queue_are_read_as_they_were_set():
    """As many fit as the board has bytes; its own lanes alone are none."""
    board = LeaseBoard(1)
    (record,) = board.records
    before = record.shards
    board.spread([0, 7, 255, 256])
    some = record.shards
    board.spread(range(300))
    most = record.shards
    board.spread([0])
    assert (before, some, record.shards) == (b"", bytes([0, 7, 255]), b"")
    assert most == bytes(range(SHARDS_MOST))
    assert not board.is_draining


# ------------------------------------------------------------------ hold, release


def test_a_unit_that_holds_nothing_is_not_on_the_board():
    board = LeaseBoard(3)
    assert board.held() == []
    assert board.counts() == dict.fromkeys(COUNTS, 0)


def test_a_lease_is_read_as_it_was_written():
    """All of it is read, with the deadline counted from the send time of the acquire."""
    board = LeaseBoard(2)
    hold(board.records[1], "request.of-some:length_1")
    (held,) = board.held()
    assert (held.unit, held.request_id, held.k) == (1, "request.of-some:length_1", "2")
    assert (held.fence, held.op) == (7, OP.decode())
    assert (held.deadline, held.taken, held.lease_s) == (130.0, 100.0, 30.0)


def test_the_longest_names_fit():
    """128 characters of id, the highest permit and fence fit; no neighbour is changed."""
    board = LeaseBoard(3)
    for record in board.records:
        record.hold("i" * 128, "9999", 2**64 - 1, OP, 1.0, 86_400.0)
        record.count(**dict.fromkeys(COUNTS, 5))
    for held in board.held():
        assert (held.request_id, held.k, held.fence) == ("i" * 128, "9999", 2**64 - 1)
        assert (held.op, held.lease_s) == (OP.decode(), 86_400.0)
    assert board.counts() == dict.fromkeys(COUNTS, 15)
    assert not any(record.attention or record.is_stopped for record in board.records)


def test_a_released_lease_is_gone():
    record = record_of_its_own()
    hold(record)
    record.release()
    assert record.held() is None


def test_a_lease_is_seen_in_another_process():
    board = LeaseBoard(2)
    pid = os.fork()
    if not pid:
        board.records[1].hold("r9", "0", 3, OP, 1.0, 2.0)
        board.records[1].count(done=4, failed=3, lost=2)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [held.request_id for held in board.held()] == ["r9"]
    assert nonzero(board.counts()) == {"done": 4, "failed": 3, "lost": 2}


# ------------------------------------------------------------------ never half of it


class Watched:
    """A field of the shared memory that reports each read and write."""

    def __init__(self, field: Any, report: Callable[[], None]) -> None:
        self.field, self.report = field, report

    def __get__(self, fields: Any, owner: Any) -> Any:
        """Reads, then reports it."""
        value = self.field.__get__(fields, owner)
        self.report()
        return value

    def __set__(self, fields: Any, value: Any) -> None:
        """Writes, then reports it."""
        self.field.__set__(fields, value)
        self.report()


class Interruption:
    """Calls `act` once, after the n-th access to a record, and not while it acts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen, self.at, self.act = count(), -1, lambda: None
        for name, *_ in RecordFields._fields_:
            watched = Watched(getattr(RecordFields, name), self.report)
            monkeypatch.setattr(RecordFields, name, watched)

    def arm(self, at: int, act: Callable[[], Any]) -> None:
        """Arms `act` for access number `at`."""
        self.seen, self.at, self.act = count(), at, act

    def report(self) -> None:
        """Counts one access."""
        if next(self.seen) == self.at:
            self.seen = count(-(10**9))
            self.act()


def is_whole(held: Held | None) -> bool:
    """Returns whether a lease is as it was written, and no mixture of two."""
    leases = {
        None,
        ("first", 7, 130.0, 30.0),
        ("another request", 9, 160.0, 60.0),
    }
    seen = held and (held.request_id, held.fence, held.deadline, held.lease_s)
    return seen in leases


@for_each("at", range(13))
def test_a_half_written_lease_is_not_seen(at: int, monkeypatch: pytest.MonkeyPatch):
    """Whenever the supervisor reads while a unit writes, it sees a whole lease or none."""
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


@for_each("at", range(13))
def test_a_lease_that_changes_while_it_is_read_is_read_again(
    at: int, monkeypatch: pytest.MonkeyPatch
):
    """Whenever a unit writes another lease while the supervisor reads, nothing is mixed."""
    record = record_of_its_own()
    hold(record, "first")
    interruption = Interruption(monkeypatch)
    interruption.arm(at, lambda: record.hold("another request", "2", 9, OP, 100.0, 60.0))
    held = record.held()
    assert is_whole(held)
    interruption.arm(-1, lambda: None)
    assert held_by(record).fence == 9


@pytest.mark.parametrize("at", range(3))
def test_a_half_noted_acquire_is_not_seen(at: int, monkeypatch: pytest.MonkeyPatch):
    """A process that dies while it notes one has sent none."""
    record, seen = record_of_its_own(), []
    interruption = Interruption(monkeypatch)
    interruption.arm(at, lambda: seen.append(record.pending_acquire()))
    record.begin_acquire(Token("r1", "2", "17"), OP)
    assert seen == [(b"r1#2.17", OP) if at == 2 else None]


@for_each("at", range(7))
def test_a_half_noted_abandoned_acquire_is_not_seen(at: int, monkeypatch: pytest.MonkeyPatch):
    record, seen = record_of_its_own(), []
    record.begin_acquire(Token("r1", "2", "17"), OP)
    interruption = Interruption(monkeypatch)
    interruption.arm(at, lambda: seen.append(record.abandoned_acquire()))
    record.end_acquire(is_abandoned=True)
    assert seen == [(b"r1#2.17", OP) if at >= 5 else None]


def test_a_process_that_died_while_it_wrote_holds_nothing():
    """Its half-written lease is not used, and the next process overwrites it."""
    record = record_of_its_own()
    hold(record)
    record._fields.version |= 1
    assert record.held() is None
    assert hold(record, "next").request_id == "next"


# ------------------------------------------------------------------ several leases of one unit


def test_a_lease_of_several_waits_for_its_turn():
    """One alone waits for no other; a finished one waits only to be settled."""
    alone, shared = LeaseBoard(1, 1).records
    hold(alone)
    shared.hold("r2", "0", 7, OP, 100.0, 30.0, 4, shared=True)
    kinds = []
    for name in ("clear_attention", "take_turn", "end_turn"):
        for record in (alone, shared):
            assert getattr(record, name)() in {True, None}
            held = held_by(record)
            kinds.append((held.waits, held.has_its_turn))
    assert kinds == [(False, False), (True, False), *[(False, True)] * 2, *[(False, False)] * 2]
    assert held_by(shared).index == 4


@pytest.mark.parametrize("how", ["stop", "release"])
def test_a_lease_that_was_taken_back_does_not_get_its_turn(how: str):
    """It was stopped, or is gone already; the next lease on the same record gets its turn."""
    (record,) = LeaseBoard(1).records
    record.hold("r1", "0", 7, OP, 100.0, 30.0, shared=True)
    if how == "stop":
        record.stop(held_by(record))
    else:
        record.release()
    assert not record.take_turn()
    record.hold("r2", "0", 8, OP, 100.0, 30.0, shared=True)
    assert record.take_turn()


def test_spare_records_have_leases_but_no_counts():
    """A unit's outcome is counted separately."""
    board = LeaseBoard(2, 3)
    for record in board.records:
        record.hold("r1", "0", 7, OP, 100.0, 30.0)
        record.count(done=1)
    assert len(board.held()) == 5
    assert nonzero(board.counts()) == {"done": 2}


def test_the_progress_of_a_call_is_read_until_its_lease_ends():
    board = LeaseBoard(2)
    for record in board.records:
        record.hold("r1", "3", 7, OP, 100.0, 30.0)
    assert board.reported() == []
    board.records[1].report(4, 30, 100)
    board.records[1].report(4, 31, 100)
    assert board.reported() == [CallProgress("r1", 3, 4, 31, 100)]
    board.records[1].hold("r1", "3", 8, OP, 100.0, 30.0)
    assert board.reported() == []


# ------------------------------------------------------------------ a call


def begin(record: LeaseRecord, entry_id: bytes = b"1700000000000-4", began: float = 103.0) -> None:
    """Begins a call of the handler, at second 103."""
    record.call.entry_id = entry_id
    record.call.began_ns = int(began * 1e9)


def running_in(record: LeaseRecord) -> Running:
    """Returns the call, which must be there."""
    running = record.running()
    assert running is not None
    return running


def test_a_call_is_on_the_board_while_it_runs():
    """The board has what charging needs: the entry, the attempt, the backoff; and the thread."""
    record = record_of_its_own()
    record.hold(
        "r1", "2", 7, OP, 100.0, 30.0, -9, 3, 5,
        taken_ms=1_700_000_000_500, limit_ms=2000, backoff_ms=(1000, 86_400_000),
    )  # fmt: skip
    before = record.running()
    record.note_thread()
    begin(record)
    running = running_in(record)
    record.rest()
    assert (before, record.running()) == (None, None)
    assert (running.entry_id, running.index) == (b"1700000000000-4", 4)
    assert (running.taken_ms, running.attempt, running.attempts) == (1_700_000_000_500, 3, 5)
    assert (running.began, running.until, running.limit_s) == (103.0, 105.0, 2.0)
    assert running.backoff_ms == (1000, 86_400_000)
    assert running.thread == threading.get_ident()
    assert running.native == threading.get_native_id()


@for_each(
    "own, asked_ms, grace, until",
    [(0.0, 0, 0.0, math.inf), (9.0, 2000, 1.5, 106.5), (1.0, 2000, 0.0, 104.0)],
)
def test_the_smaller_limit_of_handler_and_request_ends_a_call(
    own: float, asked_ms: int, grace: float, until: float
):
    """A call without one never ends; one of an async handler has a grace."""
    record = LeaseBoard(1, limit_s=own, grace_s=grace).records[0]
    record.hold("r1", "2", 7, OP, 100.0, 30.0, limit_ms=asked_ms)
    begin(record)
    assert running_in(record).until == until


def test_a_spare_records_call_runs_in_the_thread_of_its_unit():
    """The thread is noted once, when the unit starts."""
    board = LeaseBoard(2, 2)
    board.records[1].note_thread()
    for record in board.records:
        hold(record)
        begin(record)
    threads = [running_in(record).thread for record in board.records]
    assert threads == [0, threading.get_ident(), 0, threading.get_ident()]


def test_the_longest_call_fits():
    """The longest id of an entry fits; no count is changed."""
    board = LeaseBoard(2)
    for record in board.records:
        hold(record)
        begin(record, b"18446744073709551615-18446744073709551615")
    assert nonzero(board.counts()) == {}
    for record in board.records:
        assert running_in(record).entry_id == b"18446744073709551615-18446744073709551615"


def test_two_calls_for_one_entry_are_distinct():
    """They are of one lease or of two: a decision about one must not apply to the other."""
    record = record_of_its_own()
    calls = set()
    for _ in range(2):
        hold(record)
        for began in (103.0, 103.1):
            begin(record, began=began)
            calls.add(running_in(record).identity)
        record.release()
    assert len(calls) == 4


def test_a_call_of_a_process_that_died_is_not_the_next_ones():
    """Its record is used again: the call belongs to its lease."""
    record = record_of_its_own()
    hold(record)
    begin(record)
    record.release()
    assert record.running() is None
    hold(record)
    assert record.running() is None


def test_a_call_that_is_half_written_has_not_begun():
    """A process that is killed while it begins a call is not charged for the call before it."""
    record = record_of_its_own()
    hold(record)
    begin(record, b"1-1")
    before = running_in(record)
    record.call.entry_id = b"2-22"
    assert running_in(record).identity != before.identity


@for_each("at", range(11))
def test_a_call_that_ends_while_it_is_read_is_not_mixed_with_the_next(
    at: int, monkeypatch: pytest.MonkeyPatch
):
    record = record_of_its_own()
    hold(record)
    begin(record, b"1-1", 103.0)
    interruption = Interruption(monkeypatch)
    interruption.arm(at, lambda: begin(record, b"2-22", 203.0))
    running = record.running()
    interruption.arm(-1, lambda: None)
    seen = running and (running.entry_id, running.began)
    assert seen in {None, (b"1-1", 103.0), (b"2-22", 203.0)}
    assert running_in(record).entry_id == b"2-22"


# ------------------------------------------------------------------ extended, stop


@pytest.mark.parametrize(
    ("extended_to", "deadline"),
    [
        pytest.param(150.0, 150.0, id="later"),
        pytest.param(120.0, 130.0, id="earlier: both were granted, and the later one counts"),
    ],
)
def test_an_extension_moves_the_deadline_for_both_sides(extended_to: float, deadline: float):
    """The supervisor and the handler's context see the same deadline."""
    record = record_of_its_own()
    held = hold(record)
    assert record.deadline == 130.0
    record.extended(held, extended_to)
    assert held_by(record).deadline == record.deadline == deadline


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
    """It calls for attention, and the handler sees it."""
    record = record_of_its_own()
    held = hold(record)
    before = (record.attention, record.is_stopped)
    record.stop(held)
    assert (before, record.attention, record.is_stopped) == ((False, False), True, True)


@pytest.mark.parametrize("fence", [7, 8])
def test_a_stop_of_an_older_lease_does_not_stop_a_newer_one(fence: int):
    """This holds even if both requests count from one and so have the same fence."""
    record = record_of_its_own()
    older = hold(record, "r1", 7)
    record.stop(older)
    record.release()
    assert not record.is_stopped
    hold(record, "r2", fence)
    assert not record.is_stopped
    record.stop(older)
    assert not record.is_stopped


def test_attention_ends_when_it_is_cleared():
    """The one byte that is read after every call is cleared; the stop itself stays."""
    record = record_of_its_own()
    record.stop(hold(record))
    record.clear_attention()
    assert not record.attention
    assert record.is_stopped


def test_a_lost_connection_is_reported_once():
    """Any unit reports it; the supervisor then looks for the tokens it may have lost."""
    board = LeaseBoard(2)
    assert not board.pop_connection_loss()
    board.records[1].note_connection_loss()
    assert (board.pop_connection_loss(), board.pop_connection_loss()) == (True, False)


def test_draining_calls_every_unit_and_never_ends():
    """It concerns no single lease: `clear_attention` does not clear it."""
    board = LeaseBoard(2)
    before = board.is_draining
    board.drain()
    assert (before, board.is_draining) == (False, True)
    for record in board.records:
        record.clear_attention()
        assert record.attention
        assert record.is_draining
        assert not record.is_stopped


# ------------------------------------------------------------------ counts


def test_counts_add_up_over_units():
    """Each unit adds to its own record; the board adds the records."""
    board = LeaseBoard(2)
    board.records[0].count(done=1, failed=2)
    board.records[0].count(done=10)
    board.records[1].count(failed=200, done=100)
    assert nonzero(board.records[0].counts()) == {"done": 11, "failed": 2}
    assert nonzero(board.counts()) == {"done": 111, "failed": 202}


def test_a_count_without_a_field_is_refused():
    with pytest.raises(AttributeError):
        LeaseBoard(1).records[0].count(dones=1)


def test_a_lease_that_has_all_but_expired_is_stopped(monkeypatch: pytest.MonkeyPatch):
    """The clock alone shows it to the handler: its supervisor may not reach Redis."""
    record = LeaseBoard(1).records[0]
    record.hold("r1", "0", 7, OP, 100.0, 30.0)
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: 126.9)
    assert not record.is_stopped
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: 127.1)
    assert record.is_stopped


@pytest.mark.parametrize("begin", [True, False])
def test_a_unit_waits_until_it_may_begin(*, begin: bool):
    """After a death with several leases only one unit of the process continues."""
    board = LeaseBoard(2)
    board.records[1].wait(begin=False)
    board.records[1].wait(begin=begin)
    assert [record.is_waiting for record in board.records] == [False, not begin]
