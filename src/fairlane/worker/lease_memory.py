"""The layout of the memory that a worker's processes share: a head, then records.

No lock guards the page: a process that is killed would keep it. These rules replace the lock:

- Each number is aligned to its size, so that ctypes writes it by one store. A reader gets the old
  value or the new one.
- A field has one writer: the unit or the supervisor. Of a flag, one side may set it and the other
  clear it. When a process has died, the supervisor writes its records.
- A lease or call of several fields has a number that is odd while they are written. A reader
  takes the fields only if the number was even before and is the same after.
- A flag that announces other fields is written after them, and read before them.
- The supervisor answers with the version of the lease it means. The unit ignores any other.
"""

from __future__ import annotations

from ctypes import Structure, c_bool, c_char, c_double, c_int64, c_uint8, c_uint64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
SHARDS_MOST = 56
_SHARD_NUMBERS = 256  # one byte each
_BURST_SCALE = 2**20  # more than any burst
TOKEN_MOST = 296  # bytes


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


class RecordFields(Structure):
    """One record of the page."""

    _fields_ = (
        # The lease; its version is odd while it is written.
        ("version", c_uint64),
        ("deadline", c_double),
        ("taken", c_double),
        ("lease_s", c_double),
        ("fence", c_uint64),
        # Of its only sub-request; of several, minus their number, 0 and 0.
        ("index", c_int64),
        ("lease_attempt", c_uint64),
        ("lease_attempts", c_uint64),
        ("request_id", c_char * 128),
        ("k", c_char * 4),
        ("op", c_char * 32),
        ("is_held", c_bool),
        ("turn", c_uint8),
        # A call of the handler that has a time limit; its number is odd while it is written.
        ("is_running", c_bool),
        ("number", c_uint64),
        ("running_version", c_uint64),
        ("began", c_double),
        ("until", c_double),
        ("limit_s", c_double),
        ("taken_ms", c_uint64),
        ("attempt", c_uint64),
        ("attempts", c_uint64),
        ("least_backoff_ms", c_uint64),
        ("most_backoff_ms", c_uint64),
        ("thread", c_uint64),
        ("entry_id", c_char * 56),
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
        ("split_version", c_uint64),
        ("revoked_op", c_char * 32),
        ("narrowed_version", c_uint64),
        ("narrowed_index", c_uint64),
        ("extended_version", c_uint64),
        ("extended_deadline", c_double),
    )
