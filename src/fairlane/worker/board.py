"""What a worker's processes know of each other: a page of shared memory, one record a unit.

A unit (one thread or task of a child process) writes what lease it holds before the handler runs;
the supervisor reads it and extends the lease. So no busy handler, not even one that never lets go
of the interpreter lock, can keep a lease from being extended, and it costs no system call.

A unit that takes several tokens at once has a record for each of their leases: its own, where its
counts are, and spare ones. One of these leases has its turn, the others wait or are handled.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from itertools import compress
from threading import get_ident
from typing import TYPE_CHECKING

from .. import clock
from .acquires import AT_LEFT, Acquires

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIZE = 912  # from 504 on: the acquires without an answer
_HEADER = 64
_DRAINING, _CUT, _SHARDS = 0, 1, 8  # the last is a count, and so many numbers of one byte each
_SHARDS_MOST = _HEADER - _SHARDS - 1
_BYTE = 256
# In a record: version (odd while it is written), held, then the lease.
_VERSION = struct.Struct("<Q")
# Deadline, taken, lease seconds, fence, length of id and of k; of the only entry the index, the
# attempt and the attempts there are, or -1, 0 and 0.
_LEASE = struct.Struct("<dddQHHqHH")
_AT_LEASE, _AT_NAMES = 8, 56
_AT_HELD, _AT_WAITING, _AT_RUNNING, _AT_TURN = 252, 253, 254, 255
# When a lease has its turn. _GRANTED: it is alone in its unit, and its handler was not called yet.
_NOW, _LATER, _OVER, _GRANTED = range(4)
_AT_ATTENTION, _AT_STOPPED, _AT_EXTENDED, _AT_DEADLINE = 256, 264, 272, 280
# A call of the handler that has a time limit: its number (odd while it is written), then the
# lease's version, began, until, limit, taken ms, attempt of so many, backoff ms, thread, length of
# the entry's id.
_AT_NUMBER, _AT_CALL, _AT_ENTRY, _AT_COUNTS = 288, 296, 368, 424
_CALL = struct.Struct("<QdddQIIIIQH")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")
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
_AT_COUNT = {name: _AT_COUNTS + 8 * i for i, name in enumerate(COUNTS)}


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as the supervisor sees it; times in seconds of time.monotonic().

    `version` is the record's: no other lease of this unit has it. (A fence only tells the leases
    of one request apart.) `index` is that of the only sub-request it covers, and it is at `attempt`
    of `attempts`; -1, 0 and 0 for several.
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
    turn: int = _NOW

    @property
    def has_its_turn(self) -> bool:
        """True from the moment its handler is called until the last call has ended."""
        return self.turn == _NOW

    @property
    def waits(self) -> bool:
        """True while it waits for other leases of its unit."""
        return self.turn == _LATER

    @property
    def what(self) -> str:
        """For people: what was worked on, with the index if it is known."""
        one = "sub-requests" if self.index < 0 else f"sub-request {self.index}"
        return f"{one} of request {self.request_id}"


@dataclass(frozen=True, slots=True)
class Running:
    """A call of a handler that has a time limit; times in seconds of time.monotonic().

    `number` tells it from every other call of this unit. `entry_id` is what it works on, or b""
    for a batch of several. `thread` is the identity of the thread it runs in.
    """

    unit: int
    number: int
    entry_id: bytes
    began: float
    until: float
    limit_s: float
    taken_ms: int
    attempt: int
    attempts: int
    backoff_ms: tuple[int, int]
    thread: int


class Record(Acquires):
    """One unit's part of the board."""

    def __init__(self, page: mmap.mmap, unit: int) -> None:
        super().__init__(page, _HEADER + unit * _SIZE)
        self.unit = unit
        self._version = 0
        self._deadline = self._margin = 0.0

    # Written by the unit.

    def hold(
        self, request_id: str, k: str, fence: int, op: bytes, taken: float, lease_s: float,
        index: int = -1, attempt: int = 0, attempts: int = 0, *, shared: bool = False,
    ) -> None:  # fmt: skip
        """A lease was taken; `taken` is when the acquire was sent, which is never too late.

        `index` and what follows are of its only sub-request. One that is `shared` waits for others.
        """
        page, at = self._page, self._at
        version = _VERSION.unpack_from(page, at)[0] | 1
        _VERSION.pack_into(page, at, version)
        names = request_id.encode() + k.encode() + op
        _LEASE.pack_into(
            page, at + _AT_LEASE, taken + lease_s, taken, lease_s, fence, len(request_id), len(k),
            index, attempt, attempts,
        )  # fmt: skip
        page[at + _AT_NAMES : at + _AT_NAMES + len(names)] = names
        page[at + _AT_TURN] = _LATER if shared else _GRANTED
        page[at + _AT_HELD] = 1
        self._version, self._deadline = version + 1, taken + lease_s
        self._margin = lease_s / 10
        _VERSION.pack_into(page, at, version + 1)

    def release(self) -> None:
        """The lease was given back."""
        self._page[self._at + _AT_HELD] = 0

    def take_turn(self) -> bool:
        """Notes that its handler is called now; returns False if it must not begin any more.

        It gives back what waited for long, but only what did not begin after it had said so.
        """
        page, at = self._page, self._at
        page[at + _AT_TURN] = _NOW
        stopped = _U64.unpack_from(page, at + _AT_STOPPED)[0]
        is_wanted = bool(page[at + _AT_HELD]) and stopped != self._version
        return is_wanted and not self.is_stopped  # it has expired while the process was paused

    def end_turn(self) -> None:
        """Its sub-requests were worked on; it is not settled yet."""
        self._page[self._at + _AT_TURN] = _OVER

    def begin(
        self, entry_id: bytes, *, began: float, until: float, limit_s: float,
        taken_ms: int, attempt: int, attempts: int, backoff_ms: tuple[int, int],
    ) -> None:  # fmt: skip
        """A call of the handler begins that must have ended at `until`."""
        page, at = self._page, self._at
        number = _U64.unpack_from(page, at + _AT_NUMBER)[0] | 1
        _U64.pack_into(page, at + _AT_NUMBER, number)
        _CALL.pack_into(
            page, at + _AT_CALL, self._version, began, until, limit_s, taken_ms, attempt, attempts,
            *backoff_ms, get_ident(), len(entry_id),
        )  # fmt: skip
        page[at + _AT_ENTRY : at + _AT_ENTRY + len(entry_id)] = entry_id
        page[at + _AT_RUNNING] = 1
        _U64.pack_into(page, at + _AT_NUMBER, number + 1)

    def rest(self) -> None:
        """The call has ended."""
        self._page[self._at + _AT_RUNNING] = 0

    def count(self, **amounts: int) -> None:
        """Adds to this unit's counts, which are named as in COUNTS."""
        for name, amount in amounts.items():
            at = self._at + _AT_COUNT[name]
            _U64.pack_into(self._page, at, _U64.unpack_from(self._page, at)[0] + amount)

    def count_failed(self, attempt: int, attempts: int) -> None:
        """Counts an attempt that failed with its process."""
        is_last = attempt >= attempts
        self.count(failed=1, retries=not is_last, dead=is_last)

    @property
    def attention(self) -> bool:
        """True when the supervisor has said something since the last `heard`; read often."""
        return bool(self._page[self._at + _AT_ATTENTION] or self._page[_DRAINING])

    @property
    def is_stopped(self) -> bool:
        """True when the lease held now was lost, has all but expired, or its request is cancelled.

        The clock needs nobody to say so: a supervisor that cannot reach Redis may be unable to.
        """
        if not self._page[self._at + _AT_HELD]:
            return False
        return self.is_unwanted or clock.mono_s() > self.deadline - self._margin

    @property
    def is_unwanted(self) -> bool:
        """True when Redis reported that the lease held now is lost or its request cancelled."""
        stopped = _U64.unpack_from(self._page, self._at + _AT_STOPPED)[0]
        return bool(self._page[self._at + _AT_HELD] and stopped == self._version)

    @property
    def is_draining(self) -> bool:
        """True when the worker takes nothing new."""
        return bool(self._page[_DRAINING])

    @property
    def deadline(self) -> float:
        """When the lease held now ends unless it is extended again."""
        return self._extension(self._version, self._deadline)

    def cut(self) -> None:
        """A call's answer was lost on its way; a pop's may have brought a token."""
        self._page[_CUT] = 1

    @property
    def is_holding(self) -> bool:
        """True while this unit holds a lease."""
        return bool(self._page[self._at + _AT_HELD])

    @property
    def is_waiting(self) -> bool:
        """True while this unit must not begin: its process died with several leases before."""
        return bool(self._page[self._at + _AT_WAITING])

    def wait(self, *, begin: bool) -> None:
        """Tells the unit to wait with its first pop, or to begin."""
        self._page[self._at + _AT_WAITING] = 0 if begin else 1

    @property
    def shards(self) -> bytes:
        """The numbers of the queue's shards, one byte each; none = its own lanes."""
        count = self._page[_SHARDS]
        return self._page[_SHARDS + 1 : _SHARDS + 1 + count] if count else b""

    def heard(self) -> None:
        """Whatever the supervisor said was about an earlier lease."""
        self._page[self._at + _AT_ATTENTION] = 0

    # Read and written by the supervisor.

    def held(self) -> Held | None:
        """The lease this unit holds, or None; never a half-written one."""
        page, at = self._page, self._at
        for _ in range(100):
            version = _VERSION.unpack_from(page, at)[0]
            if version & 1 or not page[at + _AT_HELD]:
                return None
            deadline, taken, lease_s, fence, id_length, k_length, *only = _LEASE.unpack_from(
                page, at + _AT_LEASE
            )
            index, attempt, attempts = only
            turn = page[at + _AT_TURN]
            names = bytes(page[at + _AT_NAMES : at + _AT_NAMES + id_length + k_length + 32])
            deadline = self._extension(version, deadline)
            if _VERSION.unpack_from(page, at)[0] == version:
                k = names[id_length : id_length + k_length].decode()
                op = names[id_length + k_length :].decode()
                request_id = names[:id_length].decode()
                return Held(
                    self.unit, version, request_id, k, fence, op, deadline, taken, lease_s, index,
                    attempt, attempts, turn,
                )  # fmt: skip
        return None

    def running(self) -> Running | None:
        """The call of the handler that runs under the lease held now, if it has a time limit."""
        page, at = self._page, self._at
        if not page[at + _AT_RUNNING] or not page[at + _AT_HELD]:
            return None
        for _ in range(100):
            number = _U64.unpack_from(page, at + _AT_NUMBER)[0]
            if number & 1 or not page[at + _AT_RUNNING]:
                return None
            version, began, until, limit_s, *policy, thread, length = _CALL.unpack_from(
                page, at + _AT_CALL
            )
            taken_ms, attempt, attempts, low, high = policy
            entry_id = bytes(page[at + _AT_ENTRY : at + _AT_ENTRY + length])
            if _U64.unpack_from(page, at + _AT_NUMBER)[0] == number:
                if version != _VERSION.unpack_from(page, at)[0]:
                    return None  # of a process that died in it
                return Running(
                    self.unit, number, entry_id, began, until, limit_s, taken_ms, attempt,
                    attempts, (low, high), thread,
                )  # fmt: skip
        return None

    def extended(self, held: Held, deadline: float) -> None:
        """The lease was extended; harmless when the unit has gone on to another one."""
        _F64.pack_into(self._page, self._at + _AT_DEADLINE, deadline)
        _U64.pack_into(self._page, self._at + _AT_EXTENDED, held.version)

    def _extension(self, version: int, deadline: float) -> float:
        """The deadline of the lease with this version, given the one it began with."""
        if _U64.unpack_from(self._page, self._at + _AT_EXTENDED)[0] != version:
            return deadline
        return max(deadline, float(_F64.unpack_from(self._page, self._at + _AT_DEADLINE)[0]))

    def stop(self, held: Held) -> None:
        """Tells the unit that this lease is lost or not wanted; harmless when it has gone on."""
        _U64.pack_into(self._page, self._at + _AT_STOPPED, held.version)
        self._page[self._at + _AT_ATTENTION] = 1

    def counts(self) -> dict[str, int]:
        """The unit's counts by name."""
        at = self._at + _AT_COUNTS
        return {name: _U64.unpack_from(self._page, at + 8 * i)[0] for i, name in enumerate(COUNTS)}


class Board:
    """All records; made before the processes are forked, and shared by them.

    The first of `records` are the units' own, the last `spare` ones for more leases of theirs.
    """

    def __init__(self, units: int, spare: int = 0) -> None:
        self._page = mmap.mmap(-1, _HEADER + (units + spare) * _SIZE)
        self.records = [Record(self._page, unit) for unit in range(units + spare)]
        self.units = units

    def drain(self) -> None:
        """Every unit finishes what it holds and takes nothing new."""
        self._page[_DRAINING] = 1

    @property
    def is_draining(self) -> bool:
        """True after `drain`."""
        return bool(self._page[_DRAINING])

    def spread(self, shards: Sequence[int]) -> None:
        """Tells the units where there may be tokens. One that reads in the middle asks in vain."""
        known = [shard for shard in shards if shard < _BYTE][:_SHARDS_MOST]
        found = b"" if known == [0] else bytes(known)
        self._page[_SHARDS + 1 : _SHARDS + 1 + len(found)] = found
        self._page[_SHARDS] = len(found)

    def take_cut(self) -> bool:
        """True when a unit's connection was cut since the last time this was asked."""
        is_cut, self._page[_CUT] = bool(self._page[_CUT]), 0
        return is_cut

    def held(self) -> list[Held]:
        """The leases held now."""
        found = [record.held() for record in self._with(_AT_HELD)]
        return [held for held in found if held is not None]

    def left(self) -> list[Record]:
        """Returns the records with an acquire that was given up."""
        return [*self._with(AT_LEFT)]

    def _with(self, at: int) -> Iterable[Record]:
        return compress(self.records, self._page[_HEADER + at :: _SIZE])  # few of thousands

    def counts(self) -> dict[str, int]:
        """The counts of all units, added up."""
        rows = [record.counts() for record in self.records[: self.units]]
        return {name: sum(row[name] for row in rows) for name in COUNTS}
