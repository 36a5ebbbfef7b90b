"""Text and JSON that cannot command a terminal. Text from Redis may contain escape sequences."""

from __future__ import annotations

import json
import re
from typing import Any

# Control characters (C0, DEL, C1), marks that change the direction of text, line separators, and
# single surrogates, which no terminal can show.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Returns `text` with an escape for each character that could command a terminal."""
    if text.isprintable():
        return text
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def as_json(value: Any) -> str:
    """Returns JSON on one line, which means the same and could not command a terminal either."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if text.isascii() and "\x7f" not in text:  # JSON has an escape for each C0
        return text
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
