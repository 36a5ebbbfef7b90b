"""Reads the texts of errors, which `error:{id}` has once: `dead` and `out` only name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.operations.batching import run_all
from fairlane.protocol import keys
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.protocol.steps import Operation

ERROR_DROPPED = "the error was dropped with its dead sub-request"


def error_texts(request_id: str, names: Iterable[bytes]) -> Operation[dict[bytes, str]]:
    """Returns the text of each name, without those that were dropped. No name costs no command."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    texts = yield Command(b"HMGET", keys.errors(request_id), *wanted)
    return _present(wanted, texts)


def error_texts_of_many(named: Sequence[tuple[str, set[bytes]]]) -> Operation[dict[bytes, str]]:
    """Returns the texts of the names that several requests have, each (request, names).

    A name is the digest of its text. So a text is read from the first request that has it.
    """
    found: dict[bytes, str] = {}
    left = [(request_id, names) for request_id, names in named if names]
    while left:
        asked: set[bytes] = set()
        questions, later = [], []
        for request_id, names in left:
            if wanted := sorted(names - asked - found.keys()):
                questions.append((request_id, wanted))
                asked.update(wanted)
            if again := names - set(wanted) - found.keys():
                later.append((request_id, again))
        replies = yield from run_all(
            [Command(b"HMGET", keys.errors(one), *wanted) for one, wanted in questions]
        )
        for (_, wanted), texts in zip(questions, replies, strict=True):
            found |= _present(wanted, texts)
        # A request may have dropped the text that a later one still has.
        left = [(one, names) for one, names in later if not names <= found.keys()]
    return found


def _present(names: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, str]:
    return {
        name: text.decode("utf-8", "replace")
        for name, text in zip(names, texts, strict=True)
        if text is not None
    }
