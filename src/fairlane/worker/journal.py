"""What a unit's calls have made and Redis does not have yet, in memory shared with the supervisor.

While a call takes long, its process may be unable to send anything, because the handler keeps the
interpreter lock or blocks the event loop. Then the supervisor reads here what is done.

A journal has two halves. A batch of leases is written to one of them, and the batch before it stays
in the other, because that may be settled while the next one is handled. Each entry is one byte that
names its kind, a line whose last word is a length, and so many bytes. The byte is written last, and
a half is filled with zeros before it is used again. So a reader never takes a half-written entry.
A reader leaves out a half whose first line has changed while it was copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane.model import Verdict

if TYPE_CHECKING:
    from mmap import mmap


_BATCH, _LEASE, _RESULT, _VERDICT = b"BLRV"
_ALL_BYTES = 512 << 20  # of all journals of a worker, about
_HALF_LEAST, _HALF_MOST = 64 << 10, 256 << 10
_LEASE_BYTES = 40_000  # more than the ids of a slice take
_ZEROS = memoryview(bytes(_HALF_MOST))


@dataclass(slots=True)
class Worked:
    """A lease as its unit worked on it: the record and version of the lease on the board.

    `ids` are the entries in the order of their calls. The first ones have outcomes: `done` with
    `results`, (head, body) pairs, flat; or `verdicts`.
    """

    unit: int
    version: int
    ids: list[bytes]
    done: list[bytes] = field(default_factory=list)
    results: list[bytes] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Returns how many entries have an outcome."""
        return len(self.done) + len(self.verdicts)


class Journal:
    """The journal of one unit, at `start` of a page; `half` bytes long, twice."""

    __slots__ = ("_at", "_end", "_ends", "_half", "_number", "_page", "_start", "is_full")

    def __init__(self, page: mmap, start: int, half: int) -> None:
        self._page, self._start, self._half = page, start, half
        self._number = 0  # of the batch
        self._at = self._end = 0
        self._ends = [start, start + half]  # how far each half was written
        self.is_full = True  # until a batch begins

    @staticmethod
    def half_of(units: int) -> int:
        """Returns how long a half is, for a worker with so many units."""
        return max(_HALF_LEAST, min(_HALF_MOST, _ALL_BYTES // (2 * units) & ~4095))

    # Written by the unit.

    def begin(self) -> None:
        """Begins a batch of leases, in the half of the batch before the last one."""
        if self._number:
            self._ends[self._number & 1] = self._at
        self._number += 1
        which = self._number & 1
        start = self._start + which * self._half
        self._page[start] = 0  # first: a reader sees that the half has changed, see read
        self._page[start : self._ends[which]] = _ZEROS[: self._ends[which] - start]
        self._at, self._end = start, start + self._half - 1
        self.is_full = False
        self._add(_BATCH, b"%d 0\n" % self._number)

    def lease(self, unit: int, version: int, ids: bytes) -> None:
        """Notes that the next outcomes are those of a lease's entries, named with spaces."""
        self._add(_LEASE, b"%d %d %d\n%b" % (unit, version, len(ids), ids))

    def result(self, line: bytes, body: bytes) -> bool:
        """Notes the result of the next entry; `line` has its head and the length of its body.

        Returns False if there is no room: then the batch must be settled before the next call. It
        is written out here, because it is called for each result of a quick handler.
        """
        at = self._at
        entry = line + body
        end = at + 1 + len(entry)
        if self.is_full or end > self._end:
            self.is_full = True
            return False
        page = self._page
        page[at + 1 : end] = entry
        page[at] = _RESULT
        self._at = end
        return True

    def verdict(self, verdict: Verdict) -> None:
        """Notes the verdict on the next entry."""
        error = verdict.error.encode()
        line = b"%b %d %b %d\n%b"
        name, delay = verdict.verdict.encode(), verdict.delay_ms
        self._add(_VERDICT, line % (name, delay, verdict.head, len(error), error))

    @property
    def has_room(self) -> bool:
        """Returns True if another lease can be noted."""
        return not self.is_full and self._end - self._at > _LEASE_BYTES

    def _add(self, kind: int, entry: bytes) -> None:
        at = self._at
        end = at + 1 + len(entry)
        if self.is_full or end > self._end:
            self.is_full = True  # an outcome must not stand after one that is missing
            return
        self._page[at + 1 : end] = entry
        self._page[at] = kind
        self._at = end

    # Read by the supervisor.

    def clear(self) -> None:
        """Removes what a process wrote that has died."""
        for start in self._ends:  # nothing is written by this process
            self._page[start : start + self._half] = _ZEROS[: self._half]

    def _copy(self, start: int) -> bytes:
        """Returns what a half has; nothing if it began to be used again meanwhile."""
        text = self._page[start : start + self._half]
        head = text[: text.find(b"\n") + 1]
        return text if head and self._page[start : start + len(head)] == head else b""

    def read(self) -> dict[tuple[int, int], Worked]:
        """Returns the leases of the last two batches, by unit and version."""
        starts = (self._start, self._start + self._half)
        halves = [_read_half(text) for start in starts if (text := self._copy(start))]
        return {
            (worked.unit, worked.version): worked
            for _, leases in sorted(halves, key=lambda half: half[0])
            for worked in leases
        }


def _read_half(text: bytes) -> tuple[int, list[Worked]]:
    """Returns the number of a batch, 0 if there is none, and its leases."""
    number, at = 0, 0
    leases: list[Worked] = []
    while kind := text[at]:
        line = text.index(b"\n", at)
        *words, length = text[at + 1 : line].split(b" ")
        at = line + 1 + int(length)
        rest = text[line + 1 : at]
        if kind == _BATCH:
            number = int(words[0])
        elif kind == _LEASE:
            leases.append(Worked(int(words[0]), int(words[1]), rest.split(b" ")))
        else:
            _add_outcome(leases[-1], kind, words, rest)
    return number, leases


def _add_outcome(worked: Worked, kind: int, words: list[bytes], rest: bytes) -> None:
    entry_id = worked.ids[worked.count]
    if kind == _RESULT:
        worked.done.append(entry_id)
        worked.results += (words[0], rest)
    else:
        name, delay, head = words
        verdict = Verdict(entry_id, name.decode(), int(delay), head, rest.decode())
        worked.verdicts.append(verdict)
