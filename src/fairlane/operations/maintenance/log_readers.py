"""Keeps endings in the completion log until its readers have read them, within a bound.

Each reader marks its place in the hash `{queue}:readers`. The leader trims the log to
settings.LOG_ENTRIES, but no ending that a live reader has not read. A mark ends some time after
its last renewal, and the log never has more than settings.LOG_MOST endings. So a dead reader holds
a bounded part of the memory for a bounded time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.protocol import keys
from fairlane.protocol.request_hash import as_text
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.protocol.steps import Operation

_PAGE = 10_000  # endings of one trim: a longer one would hold up other callers
_GRACE_MS = 60_000  # a mark is deleted so long after its end: its reader may be late
_NO_PLACE = "18446744073709551615"  # behind every entry


def mark(queue: str, places: Mapping[str, str], hold_ms: int) -> Operation[None]:
    """Marks how far readers are: reader -> the last entry that it has read; renews the marks.

    A user without the right to write, and a full Redis, have no mark: the reader goes on.
    """
    if not places:
        return
    until_ms = time_ms((yield Command(b"TIME"))) + hold_ms
    words = [word for name, place in places.items() for word in (name, f"{place} {until_ms}")]
    readers = keys.log_readers(queue)
    yield Batch(
        [
            Command(b"HSET", readers, *words),
            Command(b"PEXPIRE", readers, settings.LOG_READER_MS + _GRACE_MS),
        ],
        lenient=True,
    )


def unmark(queue: str, *readers: str) -> Operation[None]:
    """Ends the marks of readers that want nothing more."""
    if readers:
        yield Command(b"HDEL", keys.log_readers(queue), *readers)


def trim(queue: str) -> Operation[int]:
    """Deletes old endings that every live reader has read; returns how many.

    The newest settings.LOG_ENTRIES stay in any case. Deletes the marks of dead readers, too.
    """
    log, readers = keys.completed(queue), keys.log_readers(queue)
    length, marks, time = yield Batch(
        [Command(b"XLEN", log), Command(b"HGETALL", readers), Command(b"TIME")]
    )
    floor, dead = _floor(as_text(marks), time_ms(time))
    if dead:
        yield Command(b"HDEL", readers, *dead)
    trimmed = 0
    while (excess := length - settings.LOG_ENTRIES - trimmed) > 0:
        # An approximate trim deletes whole blocks, so it deletes nothing above the floor.
        count = yield Command(b"XTRIM", log, b"MINID", b"~", floor, b"LIMIT", min(excess, _PAGE))
        if not count:
            break
        trimmed += count
    return trimmed


def _floor(marks: Mapping[str, str], now_ms: int) -> tuple[str, list[str]]:
    """Returns the earliest place of a live reader, and the readers that are dead."""
    floor, dead = _NO_PLACE, []
    for name, text in marks.items():
        place, _, until = text.partition(" ")
        left_ms = int(until) - now_ms if until.isdigit() else -_GRACE_MS
        # A mark that ends too late is from before the clock went back.
        if not _is_place(place) or not -_GRACE_MS < left_ms <= settings.LOG_READER_MS + _GRACE_MS:
            dead.append(name)
        elif left_ms > 0:
            floor = min(floor, place, key=_order)
    return floor, dead


def _is_place(text: str) -> bool:
    ms, _, seq = text.partition("-")
    return ms.isdigit() and (seq.isdigit() or not seq)


def _order(place: str) -> tuple[int, int]:
    ms, _, seq = place.partition("-")
    return int(ms), int(seq or 0)
