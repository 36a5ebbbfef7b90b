"""Formats numbers, names and times for people."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fairlane import settings

if TYPE_CHECKING:
    from collections.abc import Sequence


_CUT = "\n[...]\n"  # in the middle of a text that was too long
_SHOWN = 5  # names in a sentence
_MINUTES_FROM_S = 120  # below it, seconds
_HOURS_FROM_S = 7_200
_GIB = 1 << 30
_DAY_MS = 86_400_000
_DATE = "%Y-%m-%d %H:%M:%S"
# What makes room on a full Redis, and what needs some.
MAKE_ROOM = (
    "fairlane delete --state ended or fairlane dead drop (fairlane dead requeue needs some room)"
)
_REASONS = {
    "attempts": "failed every attempt",
    "timeout": "timed out",
    "deadline": "past the deadline",
}


def shortened(text: str, most: int) -> str:
    """Returns the beginning and the end of a text, at most so many bytes of valid UTF-8.

    What has no UTF-8, as a lone surrogate, becomes an escape.
    """
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= most:
        return encoded.decode()
    head = encoded[: most // 4].decode(errors="ignore")
    room = most - most // 4 - len(_CUT)
    return head + _CUT + encoded[-room:].decode(errors="ignore")


def plural(count: int, what: str) -> str:
    """Returns `1 token`, `2 tokens`."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def join_names(names: Sequence[object]) -> str:
    """Returns the first five, and how many more there are."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names in a text as a request stores them: with commas between them."""
    return tuple(filter(None, text.split(",")))


def exact(value: float) -> str:
    """Returns a number with its fraction as `0.25` or `31,622,400`, never with an exponent."""
    shown = f"{value:,.9f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else shown


def figure(value: float, digits: int = 3) -> str:
    """Returns a measured number rounded to its first digits: `20,600`, `0.0123`; no exponent."""
    if not value or not math.isfinite(value):
        return "0" if not value else str(value)
    places = digits - 1 - math.floor(math.log10(abs(value)))
    shown = f"{round(value, places):,.{max(0, places)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def of_queue(queue: str) -> str:
    """Returns the option that names this queue, with a space in front; "" for the default one."""
    return "" if queue == settings.DEFAULT_QUEUE else f" --queue {queue}"


def when(ms: int, now_ms: int) -> str:
    """Returns a time of a Redis, in ms, as `12:03:05 UTC (in 40 s)`; with the date if it is far."""
    is_near = abs(ms - now_ms) < _DAY_MS
    shown = datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S" if is_near else _DATE)
    left = f"in {format_duration(ms - now_ms + 999)}"
    gone = f"{format_duration(now_ms - ms)} ago"
    return f"{shown} UTC ({left if ms > now_ms else gone})"


def format_duration(ms: int) -> str:
    """Returns a duration in seconds, minutes or hours."""
    seconds = ms // 1000
    if seconds >= _HOURS_FROM_S:
        return f"{seconds // 3600} h"
    return f"{seconds} s" if seconds < _MINUTES_FROM_S else f"{seconds // 60} min"


def brief_ms(ms: float) -> str:
    """Returns a measured duration, as `12.5 ms`, `3.1 s` or `4 min`."""
    if ms < 1000:  # noqa: PLR2004  a second
        return f"{figure(ms)} ms"
    return f"{figure(ms / 1000)} s" if ms < 1000 * _MINUTES_FROM_S else format_duration(int(ms))


def size(count: float) -> str:
    """Returns a number of bytes in KiB, MiB or GiB."""
    if count >= _GIB:
        return f"{count / _GIB:,.1f} GiB"
    return f"{count / 1024:,.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):,.0f} MiB"


def reason_words(reason: str) -> str:
    """Returns why a sub-request is dead, given the reason that is stored with it."""
    return _REASONS.get(reason, reason)


# ------------------------------------------------------------------ terminal
# Text and JSON that cannot command a terminal. Text from Redis may contain escape sequences.


# Control characters (C0, DEL, C1), marks that change the direction of text, line separators, what
# has no width, and single surrogates, which no terminal can show. Two characters that join letters
# stay, because some scripts and emoji need them.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Returns `text` with an escape for each character that could command a terminal."""
    if text.isprintable():
        return text
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def as_json(value: Any) -> str:
    """Returns JSON on one line, which means the same and could not command a terminal either."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=_fields)
    if text.isascii() and "\x7f" not in text:  # JSON has an escape for each C0
        return text
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a record (records.py) by name. Raises TypeError for other objects."""
    try:
        return {name: getattr(record, name) for name in record.__dataclass_fields__}
    except AttributeError:
        raise TypeError(f"{type(record).__name__} is no record") from None
