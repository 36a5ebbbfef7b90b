"""The memory that the processes of a worker share: a record of the lease of each unit."""

from __future__ import annotations

import math
import mmap
import os
from contextlib import suppress
from ctypes import Structure, c_bool, c_char, c_double, c_int64, c_uint8, c_uint64, sizeof
from dataclasses import dataclass
from enum import IntEnum
from itertools import compress
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common import clock
from fairlane.records import CallProgress
from fairlane.worker.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Token


# ------------------------------------------------------------------ lease memory
# The layout of the memory that a worker's processes share: a head, then records.
#
# No lock guards the page: a process that is killed would keep it. These rules replace the lock:
#
# - Each number is aligned to its size, so that ctypes writes it by one store. A reader gets the old
#   value or the new one.
# - A field has one writer: the unit or the supervisor. Of a flag, one side may set it and the other
#   clear it. When a process has died, the supervisor writes its records.
# - A lease or call of several fields has a number that is odd while they are written. A reader
#   takes the fields only if the number was even before and is the same after.
# - A flag that announces other fields is written after them, and read before them.
# - The supervisor answers with the version of the lease it means. The unit ignores any other.


COUNTS = (
    "done",
    "failed",
    "slices",
    "busy_us",
    "unconfirmed",
    "retries",
    "rejected",
    "timeouts",
    "lost",
    "dead",
)
KILLS = {"charge": "retry", "free": "release", "dead": "killed"}  # what a person asks -> verdict
_KILL_NUMBERS = [*KILLS.values()]
SHARDS_MOST = 56
_SHARD_NUMBERS = 256  # one byte each
_BURST_SCALE = 2**20  # more than any burst
TOKEN_MOST = 296  # bytes
START_MOST = 256  # bytes of a body; a task with a longer name is not named


class Counts(Structure):
    """What a unit has done so far."""

    _fields_ = tuple((name, c_uint64) for name in COUNTS)


class WorkerFields(Structure):
    """The head of the page, which all units of a worker read."""

    _fields_ = (
        ("is_draining", c_bool),
        ("is_paused", c_bool),
        ("has_lost_connection", c_bool),
        ("is_asleep", c_bool),
        ("packed_rate", c_uint64),
        ("shard_count", c_uint64),
        ("shards", c_uint8 * SHARDS_MOST),
    )

    @property
    def rate(self) -> tuple[int, int] | None:
        """Returns the rate of the queue as its interval in us and its burst; None = no rate."""
        return divmod(self.packed_rate, _BURST_SCALE) if self.packed_rate else None

    def set_rate(self, interval_us: int, burst: int) -> None:
        """Writes the rate of the queue, by one store; twice 0 = no rate."""
        self.packed_rate = interval_us * _BURST_SCALE + burst

    def set_shards(self, shards: Iterable[int]) -> None:
        """Writes the shards that may have tokens; a reader of a half-written list sees none."""
        numbers = [shard for shard in shards if shard < _SHARD_NUMBERS][:SHARDS_MOST]
        count = 0 if numbers == [0] else len(numbers)
        self.shards[:count] = numbers[:count]
        self.shard_count = count


class CallFields(Structure):
    """The call of the handler that runs under a lease; its unit writes the fields for each call.

    `awaited` is the request for which the handler waits now. `start` is how the body of a call of a
    task begins: the task's name is in it. `began_ns` is of the performance counter, which is the
    clock of time.monotonic(); 0 = none runs. It is written last. A reader may find the entry of a
    call with the beginning of the one before. So if a process is ended for a call, both fields must
    be compared again after its end.
    """

    _fields_ = (
        ("entry_id", c_char * 56),
        ("start", c_char * START_MOST),
        ("awaited", c_char * 128),
        ("began_ns", c_uint64),
    )


class RecordFields(Structure):
    """One record of the page."""

    _fields_ = (
        # The lease; its version is odd while it is written.
        ("version", c_uint64),
        ("deadline", c_double),
        ("taken", c_double),
        ("lease_s", c_double),
        ("fence", c_uint64),
        # Of its only sub-request; of several, minus their number.
        ("index", c_int64),
        ("attempt", c_uint64),
        ("attempts", c_uint64),
        ("taken_ms", c_uint64),
        ("limit_ms", c_uint64),
        ("least_backoff_ms", c_uint64),
        ("most_backoff_ms", c_uint64),
        ("request_id", c_char * 128),
        ("k", c_char * 4),
        ("op", c_char * 32),
        ("is_held", c_bool),
        ("turn", c_uint8),
        ("call", CallFields),
        # The thread that calls the handler, in the unit's own record: its identity, and its number
        # in the system.
        ("thread", c_uint64),
        ("native", c_uint64),
        # How far a call is, if it reported that; odd while it is written.
        ("report_number", c_uint64),
        ("report_version", c_uint64),
        ("report_index", c_uint64),
        ("report_done", c_uint64),
        ("report_total", c_uint64),
        # Acquires without an answer: one that is on its way, and one that was given up. A token is
        # "<id>#<k>.<g>".
        ("is_acquiring", c_bool),
        ("has_abandoned", c_bool),
        ("acquire_op", c_char * 32),
        ("acquire_token", c_char * TOKEN_MOST),
        ("abandoned_op", c_char * 32),
        ("abandoned_token", c_char * TOKEN_MOST),
        ("counts", Counts),
        # Written by the supervisor. The versions are those of the leases it means.
        ("attention", c_bool),
        ("is_waiting", c_bool),
        ("stopped_version", c_uint64),
        ("returned_version", c_uint64),
        ("split_version", c_uint64),
        ("revoked_op", c_char * 32),
        # A call that a person ends: when it began, and which KILLS; 0 = none. The unit answers.
        ("kill_began_ns", c_uint64),
        ("kill_how", c_uint64),
        ("killed_began_ns", c_uint64),
        # Another time limit of its request, and when it was read.
        ("limited_version", c_uint64),
        ("limited_ms", c_uint64),
        ("limited_at", c_double),
        ("narrowed_version", c_uint64),
        ("narrowed_index", c_uint64),
        ("extended_version", c_uint64),
        ("extended_deadline", c_double),
    )


# ------------------------------------------------------------------ lease board
# The leases of a worker's processes: a page of shared memory, one record a unit.
#
# A unit (one thread or task of a child process) writes its lease there before the handler runs.
# The supervisor reads the lease and extends it, even if the handler keeps the interpreter lock for
# long. The page costs no system call.
#
# A unit that takes several tokens in one call has a record for each of their leases: its own
# record, which also has its counts, and spare ones. One of these leases has its turn; the others
# wait, or were handled.


_BUSY_S = 1.0  # after the end of its last batch a worker is busy for so long


class LeaseRecord:
    """One unit's part of the board.

    `owner` is the unit to which the record belongs. Its own record also has its `journal`.
    """

    def __init__(
        self, fields: RecordFields, board: LeaseBoard, unit: int, owner: int,
        journal: Journal | None = None,
    ) -> None:  # fmt: skip
        self._fields, self._worker, self._board = fields, board.worker, board
        self._counts: Counts = fields.counts
        self.call: CallFields = fields.call  # the unit writes it: see CallFields
        self.unit, self.owner, self.journal = unit, owner, journal
        self._version = 0
        self._deadline = self._margin = 0.0

    # Written by the unit.

    def hold(
        self, request_id: str, k: str, fence: int, op: bytes, taken: float, lease_s: float,
        index: int = -1, attempt: int = 0, attempts: int = 0, *, shared: bool = False,
        taken_ms: int = 0, limit_ms: int = 0, backoff_ms: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """Writes a lease; `taken` is when the acquire was sent, so the deadline is never too late.

        `index` is that of its only sub-request; for several, it is minus their number. `shared`:
        the lease waits for others. The others are those of the slice: `limit_ms` is the time limit
        of its request, 0 = it has none.
        """
        fields = self._fields
        version = fields.version | 1
        fields.version = version
        fields.request_id = request_id.encode()
        fields.k = k.encode()
        fields.op = op
        fields.fence = fence
        fields.taken = taken
        fields.lease_s = lease_s
        fields.deadline = self._deadline = taken + lease_s
        fields.index = index
        fields.attempt, fields.attempts = attempt, attempts
        fields.taken_ms, fields.limit_ms = taken_ms, limit_ms
        fields.least_backoff_ms, fields.most_backoff_ms = backoff_ms
        fields.call.awaited = b""
        fields.call.began_ns = 0  # a call of a process that died is not one of this lease
        fields.turn = Turn.LATER if shared else Turn.GRANTED
        fields.is_held = True
        self._version, self._margin = version + 1, lease_s / 10
        fields.version = version + 1

    def note_thread(self) -> None:
        """Notes the thread that calls the handler of this unit: the one that calls this."""
        self._fields.thread, self._fields.native = get_ident(), get_native_id()

    def begin_batch(self) -> None:
        """Notes that calls begin which may hold up what is beside them; wakes the supervisor."""
        self._board.batches[self.unit] = clock.mono_s()
        if self._worker.is_asleep:
            self._board.wake()

    def end_batch(self) -> None:
        """Notes that these calls have ended."""
        self._board.batches[self.unit] = -clock.mono_s()

    @property
    def version(self) -> int:
        """Returns the version of the lease held now."""
        return self._version

    def release(self) -> None:
        """Removes the lease, because it was given back."""
        self._fields.is_held = False

    def take_turn(self) -> bool:
        """Notes that the handler is called now; returns False if the lease must not begin.

        The supervisor marks a lease that waits for long as stopped, and then gives it back. A unit
        notes the turn before it reads that mark, so a lease that runs is never given back.
        """
        fields = self._fields
        fields.turn = Turn.NOW
        return fields.is_held and not self.is_stopped  # it may have expired in a paused process

    def end_turn(self) -> None:
        """Notes that the lease's sub-requests were worked on; the lease is not settled yet."""
        self._fields.turn = Turn.OVER

    def rest(self) -> None:
        """Removes the call, which has ended."""
        self.call.began_ns = 0

    def note_awaited(self, request_id: str) -> None:
        """Notes the request for which the handler waits; "" = it goes on."""
        self.call.awaited = request_id.encode()

    def report(self, index: int, done: int, total: int) -> None:
        """Writes how far the call of this sub-request is."""
        fields = self._fields
        number = fields.report_number | 1
        fields.report_number = number
        fields.report_version = self._version
        fields.report_index, fields.report_done, fields.report_total = index, done, total
        fields.report_number = number + 1

    def begin_acquire(self, token: Token, op: bytes) -> None:
        """Notes an acquire that goes out: only the unit has its op.

        If the process dies before the reply, the supervisor sends the acquire again. A token that
        is longer than any of ours, or has a NUL, is no token of ours and is not noted.
        """
        fields, shown = self._fields, token.text.encode()
        if len(shown) <= TOKEN_MOST and b"\0" not in shown:
            fields.acquire_op = op
            fields.acquire_token = shown
            fields.is_acquiring = True

    def begin_exchange(self, op: bytes) -> None:
        """Notes an exchange that goes out: its tokens are noted in Redis under its op."""
        fields = self._fields
        fields.acquire_op = op
        fields.acquire_token = b""
        fields.is_acquiring = True

    def end_acquire(self, *, is_abandoned: bool = False) -> None:
        """Removes the acquire: its reply is on the board, or it was given up.

        A node may grant an abandoned acquire later. So the supervisor sends it again, one a record.
        """
        fields = self._fields
        if is_abandoned and not fields.has_abandoned:
            fields.abandoned_op = fields.acquire_op
            fields.abandoned_token = fields.acquire_token
            fields.has_abandoned = True
        fields.is_acquiring = False

    def count(self, **amounts: int) -> None:
        """Adds to this unit's counts, which are named as in COUNTS."""
        counts = self._counts
        for name, amount in amounts.items():
            setattr(counts, name, getattr(counts, name) + amount)

    def count_failed(self, attempt: int, attempts: int) -> None:
        """Counts an attempt that failed because its process died."""
        is_last = attempt >= attempts
        self.count(failed=1, retries=not is_last, dead=is_last)

    def note_connection_loss(self) -> None:
        """Notes that a reply was lost; the reply to a pop may have brought a token."""
        self._worker.has_lost_connection = True

    def clear_attention(self) -> None:
        """Clears the flag that `stop` sets; the lease stays stopped."""
        self._fields.attention = False

    # Read by the unit.

    @property
    def attention(self) -> bool:
        """Returns True if a lease was stopped since `clear_attention`, or if the worker drains.

        The unit reads it after each call of the handler, so it must be cheap.
        """
        return self._fields.attention or self._worker.is_draining  # type: ignore[no-any-return]

    @property
    def is_stopped(self) -> bool:
        """Returns True if the lease held now is lost or nearly expired, or its request cancelled.

        The clock is read too, because a supervisor that cannot reach Redis cannot report the end.
        """
        fields = self._fields
        if not fields.is_held:
            return False
        is_unwanted = fields.stopped_version == self._version
        return is_unwanted or clock.mono_s() > self.deadline - self._margin

    @property
    def is_unwanted(self) -> bool:
        """Returns True if Redis reported the lease as lost, or its request as cancelled."""
        fields = self._fields
        return bool(fields.is_held and fields.stopped_version == self._version)

    def changed_limit(self) -> ChangedLimit | None:
        """Returns the time limit that the request of the lease got while it was held, or None."""
        fields = self._fields
        return self._changed_limit(fields.version) if fields.is_held else None

    def _changed_limit(self, version: int) -> ChangedLimit | None:
        fields = self._fields
        if fields.limited_version != version:
            return None
        return ChangedLimit(self._board.limit_of(fields.limited_ms), fields.limited_at)

    @property
    def kill_verdict(self) -> str:
        """Returns the verdict with which a person ends the call that runs now; "" = none does."""
        fields, began_ns = self._fields, self.call.began_ns
        is_meant = began_ns and fields.kill_began_ns == began_ns
        return _KILL_NUMBERS[fields.kill_how] if is_meant else ""

    def note_killed(self) -> None:
        """Notes that the call was ended by its unit, with the verdict that was asked for."""
        self._fields.killed_began_ns = self.call.began_ns

    @property
    def is_split(self) -> bool:
        """Returns True if no further call may begin under the lease held now."""
        fields = self._fields
        return bool(fields.is_held and fields.split_version == self._version)

    def is_revoked(self, op: bytes) -> bool:
        """Returns True if what this exchange acquired must go back; to be read after its end."""
        return self._fields.revoked_op == op  # type: ignore[no-any-return]

    @property
    def is_draining(self) -> bool:
        """Returns True if the worker takes no new work."""
        return bool(self._worker.is_draining)

    @property
    def is_paused(self) -> bool:
        """Returns True while the queue is paused."""
        return bool(self._worker.is_paused)

    @property
    def queue_rate(self) -> tuple[int, int] | None:
        """Returns the rate of the queue as its interval in us and its burst; None = no rate."""
        return self._worker.rate

    @property
    def takes_ahead(self) -> bool:
        """Returns True unless the worker drains, or the queue is paused or has a rate."""
        worker = self._worker
        return not (worker.is_draining or worker.is_paused or worker.packed_rate)

    @property
    def deadline(self) -> float:
        """Returns when the lease held now ends unless it is extended again."""
        return self._extension(self._version, self._deadline)

    @property
    def is_holding(self) -> bool:
        """Returns True while this unit holds a lease."""
        return bool(self._fields.is_held)

    @property
    def is_waiting(self) -> bool:
        """Returns True while the unit must wait, because several leases died with its process."""
        return bool(self._fields.is_waiting)

    @property
    def shards(self) -> bytes:
        """Returns the numbers of the queue's shards, one byte each; none = its own lanes."""
        count = self._worker.shard_count
        return bytes(self._worker.shards[:count]) if count else b""

    # Read and written by the supervisor.

    def held(self) -> Held | None:
        """Returns the lease this unit holds, or None; never a half-written one.

        A lease that the supervisor has given back or settled is not held, although its unit may not
        know that for as long as a slow call takes.
        """
        fields = self._fields
        for _ in range(100):
            version = fields.version
            if version & 1 or not fields.is_held or fields.returned_version == version:
                return None
            names = fields.request_id, fields.k, fields.op
            fence, taken, lease_s = fields.fence, fields.taken, fields.lease_s
            deadline = self._extension(version, fields.deadline)
            index, turn = fields.index, fields.turn
            if fields.narrowed_version == version:
                index = fields.narrowed_index
            attempt, attempts = (0, 0) if fields.index < 0 else (fields.attempt, fields.attempts)
            if fields.version == version:
                request_id, k, op = (name.decode() for name in names)
                return Held(
                    self.unit, version, request_id, k, fence, op, deadline, taken, lease_s, index,
                    attempt, attempts, turn,
                )  # fmt: skip
        return None

    def running(self) -> Running | None:
        """Returns the call that runs under the lease held now, or None."""
        fields, call, board = self._fields, self.call, self._board
        for _ in range(100):
            version, began_ns, start = fields.version, call.began_ns, call.start
            if version & 1 or not began_ns or not fields.is_held:
                return None
            changed = self._changed_limit(version)
            running = Running(
                self.unit, version, call.entry_id, began_ns,
                changed.limit_s if changed else board.limit_of(fields.limit_ms),
                fields.taken_ms, fields.attempt, fields.attempts,
                (fields.least_backoff_ms, fields.most_backoff_ms), *board.thread_of(self),
                board.grace_s, changed.least_until if changed else 0.0, start,
            )  # fmt: skip
            if (fields.version, call.began_ns, call.entry_id) == running.identity:
                return running
        return None

    def awaited(self) -> str:
        """Returns the request for which the call of this record waits; "" = none."""
        return self.call.awaited.decode() if self.call.began_ns else ""

    def change_limit(self, held: Held, limit_ms: int) -> None:
        """Notes the time limit that the request of this lease has now."""
        fields = self._fields
        if fields.limited_version != held.version or fields.limited_ms != limit_ms:
            fields.limited_ms, fields.limited_at = limit_ms, clock.mono_s()
            fields.limited_version = held.version

    def kill(self, running: Running, verdict: str) -> None:
        """Asks the unit to cancel this call, and to settle it with one of the verdicts of KILLS."""
        self._fields.kill_how = _KILL_NUMBERS.index(verdict)
        self._fields.kill_began_ns = running.began_ns

    def was_killed(self, running: Running) -> bool:
        """Returns True if the unit has ended this call because of `kill`."""
        return bool(self._fields.killed_began_ns == running.began_ns)

    def reported(self, held: Held) -> CallProgress | None:
        """Returns how far a call under this lease is; None if none reported it."""
        fields = self._fields
        number, version = fields.report_number, fields.report_version
        parts = fields.report_index, fields.report_done, fields.report_total
        if number & 1 or fields.report_number != number or version != held.version:
            return None
        return CallProgress(held.request_id, int(held.k), *parts)

    def pending_acquire(self) -> tuple[bytes, bytes] | None:
        """Returns the token and op of an acquire without a reply; only of a dead process."""
        fields = self._fields
        return (fields.acquire_token, fields.acquire_op) if fields.is_acquiring else None

    def revoke_exchange(self) -> bytes | None:
        """Makes the unit give back what an exchange without a reply acquires; returns its op.

        A unit notes the end of an exchange before it reads this mark. So it begins no lease of an
        exchange that is returned here.
        """
        fields = self._fields
        if not fields.is_acquiring or fields.acquire_token:
            return None
        fields.revoked_op = op = fields.acquire_op
        return op if fields.is_acquiring and fields.acquire_op == op else None

    def abandoned_acquire(self) -> tuple[bytes, bytes] | None:
        """Returns the token and op of an acquire that was given up, until `forget_abandoned`."""
        fields = self._fields
        return (fields.abandoned_token, fields.abandoned_op) if fields.has_abandoned else None

    def forget_abandoned(self) -> None:
        """Makes room for the next acquire that is given up."""
        self._fields.has_abandoned = False

    def wait(self, *, begin: bool) -> None:
        """Makes the unit wait before its first pop, or lets it begin."""
        self._fields.is_waiting = not begin

    def extended(self, held: Held, deadline: float) -> None:
        """Notes that the lease was extended; a no-op for a unit that has another lease by now."""
        self._fields.extended_deadline = deadline
        self._fields.extended_version = held.version

    def _extension(self, version: int, deadline: float) -> float:
        """Returns the deadline of the lease with this version, which began with `deadline`."""
        if self._fields.extended_version != version:
            return deadline
        extended: float = self._fields.extended_deadline
        return max(deadline, extended)

    def stop(self, held: Held) -> None:
        """Marks the lease as lost or unwanted; a no-op if the unit has another lease by now."""
        self._fields.stopped_version = held.version
        self._fields.attention = True

    def returned(self, held: Held) -> None:
        """Notes that Redis has this lease back: its unit was stopped, or its turn is over."""
        self._fields.returned_version = held.version

    def split(self, held: Held) -> None:
        """Makes the unit begin no further call under this lease, after the one that runs."""
        self._fields.split_version = held.version
        self._fields.attention = True

    def has_split(self, held: Held) -> bool:
        """Returns True if this lease was split."""
        return bool(self._fields.split_version == held.version)

    def narrow(self, held: Held, index: int) -> None:
        """Notes that a split lease has only this sub-request left, whose call runs."""
        self._fields.narrowed_index = index
        self._fields.narrowed_version = held.version

    def counts(self) -> dict[str, int]:
        """Returns the unit's counts by name."""
        return {name: getattr(self._counts, name) for name in COUNTS}


class LeaseBoard:
    """All records; made before the processes are forked, and shared by them.

    The first of `records` are the units' own, the last `spare` ones are for their further leases.
    Each of the `processes` has equal parts of both. `limit_s` is the time limit of the worker's
    handler, 0 = none. A call ends `grace_s` after its limit, or its process is killed.
    """

    def __init__(
        self, units: int, spare: int = 0, processes: int = 1, *,
        limit_s: float = 0.0, grace_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._limit_s, self.grace_s = limit_s, grace_s
        count, head = units + spare, sizeof(WorkerFields)
        times = head + count * sizeof(RecordFields)
        self._page = mmap.mmap(-1, times + units * sizeof(c_double))
        self.worker = WorkerFields.from_buffer(self._page)
        every = (RecordFields * count).from_buffer(self._page, head)
        # When each unit's batch began; with a minus, when it ended.
        self.batches = (c_double * units).from_buffer(self._page, times)
        half = Journal.half_of(units)
        pages = mmap.mmap(-1, 2 * half * units)
        journals = [Journal(pages, 2 * half * unit, half) for unit in range(units)]
        each, more = units // processes, max(1, spare // processes)
        owners = [i // more * each + i % more % each for i in range(spare)]
        self.records = [
            LeaseRecord(every[unit], self, unit, owner, journals[unit] if unit < units else None)
            for unit, owner in enumerate([*range(units), *owners])
        ]
        self.units = units
        self._woken = self._wakes = -1

    def open_pipe(self) -> int:
        """Makes the pipe that wakes the supervisor, before the fork; returns the end to read."""
        self._woken, self._wakes = os.pipe()
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
        return self._woken

    def close(self) -> None:
        """Closes that pipe."""
        for end in (self._woken, self._wakes):
            if end >= 0:
                os.close(end)
        self._woken = self._wakes = -1

    def drain(self) -> None:
        """Makes every unit finish what it holds and take nothing new."""
        self.worker.is_draining = True

    @property
    def is_draining(self) -> bool:
        """Returns True after `drain`."""
        return bool(self.worker.is_draining)

    def pause(self, *, is_paused: bool) -> None:
        """Makes every unit take nothing new, or lets the units take work again."""
        self.worker.is_paused = is_paused

    def spread(self, shards: Sequence[int]) -> None:
        """Sets the shards that may have tokens. A unit that reads a half-written list pops none."""
        self.worker.set_shards(shards)

    def limit_rate(self, interval_us: int, burst: int) -> None:
        """Sets the rate of the queue; twice 0 = it has none."""
        self.worker.set_rate(interval_us, burst)

    def pop_connection_loss(self) -> bool:
        """Returns True if a unit lost a connection since the last call."""
        worker = self.worker
        has_lost, worker.has_lost_connection = worker.has_lost_connection, False
        return bool(has_lost)

    def wake(self) -> None:
        """Wakes the supervisor; called by a unit."""
        self.worker.is_asleep = False
        with suppress(BlockingIOError):
            os.write(self._wakes, b"w")

    def clear(self) -> None:
        """Reads what has woken the supervisor."""
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def may_sleep(self) -> bool:
        """Returns True if none has run for a while; then the next one wakes the supervisor."""
        if max(self.batches) > 0 or -min(self.batches) > clock.mono_s() - _BUSY_S:
            self.worker.is_asleep = False
            return False
        self.worker.is_asleep = True
        return bool(max(self.batches) <= 0)  # one may have begun before it saw that

    def long_batches(self, since: float) -> dict[int, float]:
        """Returns the units whose batch runs since before that time, and when it began."""
        return {unit: at for unit, at in enumerate(self.batches) if 0 < at < since}

    def clear_batch(self, unit: int) -> None:
        """Removes what a unit noted whose process has died, before another one starts.

        All its leases were taken back. It may not have released those that went back before that.
        """
        for record in self.of_unit(unit):
            record.release()
        self.batches[unit] = 0.0
        journal = self.records[unit].journal
        if journal is not None:
            journal.clear()

    def limit_of(self, limit_ms: int) -> float:
        """Returns the smaller of a request's limit and the handler's own, in s; 0 = none."""
        return smaller_limit(self._limit_s, limit_ms / 1000)

    def thread_of(self, record: LeaseRecord) -> tuple[int, int]:
        """Returns the thread that calls the handler of a record's unit, see `note_thread`."""
        fields = self.records[record.owner]._fields
        return fields.thread, fields.native

    def of_unit(self, unit: int) -> list[LeaseRecord]:
        """Returns the records of a unit."""
        return [record for record in self.records if record.owner == unit]

    def held(self) -> list[Held]:
        """Returns the leases held now."""
        leases = [record.held() for record in self._with("is_held")]
        return [held for held in leases if held is not None]

    def reported(self) -> list[CallProgress]:
        """Returns how far the calls are that reported it."""
        calls = [self.records[held.unit].reported(held) for held in self.held()]
        return [call for call in calls if call is not None]

    def abandoned(self) -> list[LeaseRecord]:
        """Returns the records whose acquire was given up."""
        return [*self._with("has_abandoned")]

    def _with(self, flag: str) -> Iterable[LeaseRecord]:
        """Returns the records with this flag: few among thousands."""
        at = sizeof(WorkerFields) + getattr(RecordFields, flag).offset
        return compress(self.records, self._page[at :: sizeof(RecordFields)])

    def counts(self) -> dict[str, int]:
        """Returns the counts of all units, added up."""
        rows = [record.counts() for record in self.records[: self.units]]
        return {name: sum(row[name] for row in rows) for name in COUNTS}


# ------------------------------------------------------------------ held
# Leases and calls of the handler as the supervisor reads them from the board.


class Turn(IntEnum):
    """When a lease of a unit is worked on."""

    NOW = 0
    LATER = 1  # it waits for other leases
    OVER = 2
    GRANTED = 3  # it is alone in its unit, and its handler was not called yet


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as the supervisor reads it; times in seconds of time.monotonic().

    `version` is the version of the record; no other lease of this unit has it. (Fences differ only
    among the leases of one request.) If the lease covers one sub-request, `index` is its index, and
    it is at `attempt` of `attempts`. If it covers several, `index` is minus their number, and the
    others are 0.
    """

    unit: int
    version: int
    request_id: str
    k: str
    fence: int
    op: str
    deadline: float
    taken: float
    lease_s: float
    index: int = -1
    attempt: int = 0
    attempts: int = 0
    turn: int = Turn.NOW

    @property
    def has_its_turn(self) -> bool:
        """Returns True from the first call of its handler until the last call has ended."""
        return self.turn == Turn.NOW

    @property
    def waits(self) -> bool:
        """Returns True while the lease waits for other leases of its unit."""
        return self.turn == Turn.LATER

    @property
    def count(self) -> int:
        """Returns the number of sub-requests that the lease covers."""
        return max(1, -self.index)

    @property
    def what(self) -> str:
        """Names what was worked on, with the index if it is known, for people."""
        which = "sub-requests" if self.index < 0 else f"sub-request {self.index}"
        return f"{which} of request {self.request_id}"


def smaller_limit(own_s: float, asked_s: float) -> float:
    """Returns the smaller of two time limits; 0 = there is none."""
    return min(own_s, asked_s) if own_s and asked_s else own_s or asked_s


_LEAST_S = 1.0  # a call is not ended sooner after its limit was changed


class ChangedLimit(NamedTuple):
    """A time limit that was changed while a lease is held, in s, and when that was read."""

    limit_s: float  # 0 = none
    at: float

    @property
    def least_until(self) -> float:
        """Returns until when a call goes on at least, though its time is over."""
        return self.at + _LEAST_S

    def until(self, began: float) -> float:
        """Returns when a call must have ended that began then; inf = it may go on."""
        return max(began + self.limit_s, self.least_until) if self.limit_s else math.inf


@dataclass(frozen=True, slots=True)
class Running:
    """A call of a handler under the lease of this `version`.

    `entry_id` is the entry it works on, or b"" for a batch of several. `limit_s` is its time limit,
    0 = none, and `grace_s` what it may take to end after that. It is not late before
    `least_until`. `thread` is the identity of its
    thread, `native` the thread's number in the system. `start` is how the body of a call of a task
    begins.
    """

    unit: int
    version: int
    entry_id: bytes
    began_ns: int
    limit_s: float
    taken_ms: int
    attempt: int
    attempts: int
    backoff_ms: tuple[int, int]
    thread: int
    native: int
    grace_s: float = 0.0
    least_until: float = 0.0
    start: bytes = b""

    @property
    def identity(self) -> tuple[int, int, bytes]:
        """Returns what no other call of its unit has."""
        return self.version, self.began_ns, self.entry_id

    @property
    def began(self) -> float:
        """Returns when it began, in seconds of time.monotonic()."""
        return self.began_ns / 1e9

    @property
    def until(self) -> float:
        """Returns when it must have ended, in seconds of time.monotonic(); inf = no limit."""
        if not self.limit_s:
            return math.inf
        return max(self.began + self.limit_s, self.least_until) + self.grace_s

    @property
    def index(self) -> int | None:
        """Returns the index of its sub-request; None for a batch of several."""
        index = self.entry_id.partition(b"-")[2]
        return int(index) if index.isdigit() else None
