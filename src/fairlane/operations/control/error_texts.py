"""Reads the texts of errors, which `error:{id}` has once: `dead` and `out` only name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol import keys
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.protocol.steps import Operation

ERROR_DROPPED = "the error was dropped with its dead sub-request"


def error_texts(request_id: str, names: Iterable[bytes]) -> Operation[dict[bytes, str]]:
    """Returns the text of each name, without those that were dropped. No name costs no command."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    texts = yield Command(b"HMGET", keys.errors(request_id), *wanted)
    return {
        name: text.decode("utf-8", "replace")
        for name, text in zip(wanted, texts, strict=True)
        if text is not None
    }
