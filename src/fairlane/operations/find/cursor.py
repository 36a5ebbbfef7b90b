"""Where a page ended, as text: the next call continues there."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from fairlane.errors import InvalidArgument

_DIGITS = 20  # of a number of 64 bits
_SHOWN_MOST = 60  # characters of a refused cursor


def write_cursor(owner: str, *parts: Any) -> str:
    """Returns a cursor; `owner` is what the pages are of, as `queue req`."""
    text = json.dumps([owner, *parts], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, owner: str) -> list[Any]:
    """Returns the parts of a cursor. Raises InvalidArgument for one of another owner."""
    parts = _decoded(cursor)
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise invalid_cursor(cursor)
    if parts[0] != owner:
        raise InvalidArgument(
            f"cursor {_short(cursor)} is of {parts[0]}, not of {owner}: "
            f"give one that a page of {owner} ended with"
        )
    return parts[1:]


def is_number(text: str) -> bool:
    """Returns True for a cursor of SCAN: a number of 64 bits."""
    return len(text) <= _DIGITS and text.isascii() and text.isdecimal() and int(text) < 1 << 64


def invalid_cursor(cursor: object) -> InvalidArgument:
    """Returns the error for a text that no page ended with."""
    return InvalidArgument(
        f"cursor {_short(cursor)} is not valid: give the one that the page before ended with"
    )


def _decoded(cursor: str) -> Any:
    try:
        return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, binascii.Error, RecursionError):
        return None


def _short(cursor: object) -> str:
    shown = repr(cursor)
    return shown if len(shown) <= _SHOWN_MOST else f"{shown[:_SHOWN_MOST]}..."
