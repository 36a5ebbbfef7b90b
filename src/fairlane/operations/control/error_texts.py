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
    return _present(wanted, (yield Command(b"HMGET", keys.errors(request_id), *wanted)))


def error_texts_of_many(named: Sequence[tuple[str, set[bytes]]]) -> Operation[dict[bytes, str]]:
    """Returns the texts of the names that several requests have, each (request, names).

    A name is the digest of its text. So a text is read from the first request that has the name,
    and from the others only if the first one has dropped the text.
    """
    asked: set[bytes] = set()
    first, others = [], []
    for request_id, names in named:
        first.append((request_id, names - asked))
        others.append((request_id, names & asked))
        asked |= names
    found = yield from _texts(first)
    missing = [(request_id, names - found.keys()) for request_id, names in others]
    return found | (yield from _texts(missing))


def _texts(named: Sequence[tuple[str, set[bytes]]]) -> Operation[dict[bytes, str]]:
    questions = [(request_id, sorted(names)) for request_id, names in named if names]
    replies = yield from run_all(
        [Command(b"HMGET", keys.errors(request_id), *wanted) for request_id, wanted in questions]
    )
    found: dict[bytes, str] = {}
    for (_, wanted), texts in zip(questions, replies, strict=True):
        found |= _present(wanted, texts)
    return found


def _present(names: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, str]:
    return {
        name: text.decode("utf-8", "replace")
        for name, text in zip(names, texts, strict=True)
        if text is not None
    }
