"""Finds why no work of a queue can start now, by request. Only reads; the cost is bounded."""

from __future__ import annotations

from typing import NamedTuple

from fairlane.operations.blockers.causes import causes_of
from fairlane.operations.blockers.facts import read_queue, read_request
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Operation

_MOST = 20  # requests read


class Waits(NamedTuple):
    """An unfinished request and what it waits for; if `kind` and `due_ms` are equal, so is that."""

    request_id: str
    kind: str
    why: str  # for people
    due_ms: int = 0


def waiting(queue: str, most: int = _MOST) -> Operation[tuple[list[Waits], int]]:
    """Returns what at most `most` unfinished requests wait for, and how many more there are.

    Raises FairlaneError if they can't be read.
    """
    names, count = yield Batch(
        [
            Command(b"ZRANGE", keys.active(queue), 0, most - 1),
            Command(b"ZCARD", keys.active(queue)),
        ]
    )
    if not names:
        return [], 0
    found, home = [], (yield from read_queue(queue))
    for name in names:
        request_id = name.decode("utf-8", "replace")
        facts = yield from read_request(request_id)
        causes = causes_of(facts, home) if facts is not None else []
        if causes:
            first = causes[0]
            found.append(Waits(request_id, first.kind, first.text, first.until_ms))
    return found, max(0, count - len(names))
