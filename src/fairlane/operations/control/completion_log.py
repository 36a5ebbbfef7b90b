"""Reads endings from a place in the completion log, and detects if some may be missing."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import DataLost, InvalidArgument
from fairlane.operations.control.request_state import completion
from fairlane.operations.maintenance.log_readers import mark
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from fairlane.model import Completion

_ENTRY = re.compile(r"[0-9]{1,20}(-[0-9]{1,20})?")
_SHOWN = 60  # characters of what is refused
_PAGE = 100  # endings of one read


class LogReader:
    """Reads the log page by page, and marks how far it is, so that the log keeps the rest."""

    def __init__(self, queue: str, after: str) -> None:
        self.queue, self.after = queue, after
        self._name = f"follower:{secrets.token_hex(8)}"
        self._mark_at = 0.0

    def page(self, block_ms: int = 0) -> Operation[list[Completion]]:
        """Returns endings behind `after`, which the caller moves. Raises as read_completions."""
        endings = yield from read_completions(self.queue, self.after, block_ms)
        has_more = bool(block_ms) or len(endings) == _PAGE
        if endings and has_more and clock.mono_s() >= self._mark_at:
            self._mark_at = clock.mono_s() + settings.LOG_MARK_S
            yield from mark(self.queue, {self._name: self.after}, settings.LOG_FOLLOWER_MS)
        return endings


def read_completions(queue: str, after: str, block_ms: int) -> Operation[list[Completion]]:
    """Returns endings logged after `after`: a log_id, "0" for all that is kept, or a moment in ms.

    Raises InvalidArgument. Raises DataLost if endings after that place may have left the log, or if
    a failover lost that place, because later endings may then be logged before it.
    """
    if not is_place(after):
        raise InvalidArgument(
            f"{after[:_SHOWN]!r} is no place in the completion log: a log_id is expected"
        )
    words: tuple[Any, ...] = (b"XREAD", b"COUNT", _PAGE)
    if block_ms:
        words += (b"BLOCK", block_ms)
    reply = yield Command(*words, b"STREAMS", keys.completed(queue), after)
    # Checked after the page was read: a place that is in the log now was in it then.
    if "-" in after:
        why = yield from lost_behind(queue, after)
    else:
        why = "" if after == "0" else (yield from trimmed_before(queue, after))
    if why:
        raise DataLost(
            f"endings after {after} may be missing from the completion log of queue {queue}: {why}"
            '; read on from an earlier log_id, or from "0": some endings then come again'
        )
    return [completion(log_id, fields) for log_id, fields in (reply[0][1] if reply else [])]


def last_completion(queue: str) -> Operation[str]:
    """Returns where the completion log ends now: an entry id, "0-0" if it is empty."""
    reply = yield Command(b"XREVRANGE", keys.completed(queue), "+", "-", b"COUNT", 1)
    return reply[0][0].decode() if reply else "0-0"


BEGIN = "0-0"  # before every entry


Entries = list[tuple[bytes, Any]]


class Span(NamedTuple):
    """The present content of a stream: its first and last entry, and how many there are."""

    first: str
    last: str
    length: int


def place(entry_id: str) -> tuple[int, int]:
    """Returns an entry id as two numbers, ordered as the stream is. Raises ValueError."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq or 0)


def is_place(text: str) -> bool:
    """Returns True for a place in a stream: an entry id, or a moment in ms."""
    return bool(_ENTRY.fullmatch(text)) and max(place(text)) < (1 << 64) - 1


def has_entries_before(text: str) -> bool:
    """Returns True for a place in a stream that entries may be before."""
    return is_place(text) and place(text) > place(BEGIN)


def span(stream: bytes) -> Operation[Span | None]:
    """Returns the present content of a stream; None if it is empty or does not exist."""
    return span_of(*(yield Batch(ends(stream))))


def lost_behind(queue: str, at: str) -> Operation[str]:
    """Returns why endings after the entry `at` may be missing from the log; "" if none can be.

    The log loses entries at its old end only. So while it holds `at`, it holds all later entries.
    `at` is an entry that was read, or BEGIN if none was read.
    """
    log = keys.completed(queue)
    if place(at) == place(BEGIN) or (yield Command(b"XRANGE", log, at, at)):
        return ""
    found = yield from span(log)
    if found is None:
        return "the log is empty by now"
    if place(at) < place(found.first):
        return f"the log begins at {found.first} by now"
    if place(found.last) < place(at):
        return f"the log ends at {found.last} by now, as a failover or a restart took back its end"
    return f"the entry {at} is not in the log any more, as a failover or a restart took it back"


def trimmed_before(queue: str, moment_ms: str) -> Operation[str]:
    """Returns why endings after this time may be missing from the log; "" if none can be.

    A log that is shorter than what it keeps was never trimmed.
    """
    found = yield from span(keys.completed(queue))
    if found is None or found.length < settings.LOG_ENTRIES:
        return ""
    is_behind = place(moment_ms) < place(found.first)
    return f"the log begins at {found.first} by now" if is_behind else ""


def ends(stream: bytes) -> list[Command]:
    """Returns three commands; `span_of` takes their replies."""
    return [
        Command(b"XLEN", stream),
        Command(b"XRANGE", stream, "-", "+", b"COUNT", 1),
        Command(b"XREVRANGE", stream, "+", "-", b"COUNT", 1),
    ]


def span_of(length: int, first: Entries, last: Entries) -> Span | None:
    """Returns what is in a stream, from the replies to `ends`; None if it is empty."""
    if not first or not last:
        return None
    return Span(first[0][0].decode(), last[0][0].decode(), length)
