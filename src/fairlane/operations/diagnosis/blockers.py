"""Finds why no work of a queue can start now, by request. Only reads; the cost is bounded."""

from __future__ import annotations

from typing import NamedTuple

from fairlane.common.text import format_duration
from fairlane.model import ENDED_STATES
from fairlane.operations.maintenance.queue_pause import QueuePause, read_until, remedy
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

_MOST = 20  # requests read
_FIELDS = ("state", "open", "fresh", "opens", "rates")


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
    names, count, until = yield Batch(
        [
            Command(b"ZRANGE", keys.active(queue), 0, most - 1),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"HGET", keys.conf(queue), b"paused_until"),
        ]
    )
    found = []
    for name in names:
        one = yield from _one(queue, name.decode("utf-8", "replace"), read_until(until))
        if one is not None:
            found.append(one)
    return found, max(0, count - len(names))


def _one(queue: str, request_id: str, paused_until: int) -> Operation[Waits | None]:
    leases, retries = keys.leases(request_id), keys.retries(request_id)
    row, held, first, time = yield Batch(
        [
            hmget(request_id, *_FIELDS),
            Command(b"ZCARD", leases),
            Command(b"ZRANGE", retries, 0, 0, b"WITHSCORES"),
            Command(b"TIME"),
        ]
    )
    state, is_open, fresh, opens, rates = parse_fields(_FIELDS, row)
    if not state or state in ENDED_STATES or state == "abandoned":
        return None
    now, due = time_ms(time), int(float(first[1])) if first else 0
    if state != "active":
        is_paused = state == "paused"
        what = f"fairlane resume {request_id}" if is_paused else "what is held must end first"
        return Waits(request_id, state, f"{state}: {what}")
    if held:
        return Waits(request_id, "held", "held by another worker")
    kind, what = ("rate", "its rates allow more") if rates else ("delay", "starts")
    next_due = int(opens or 0)
    if next_due <= now and not int(fresh or 0):
        kind, what, next_due = "retry", "next retry", due
    if next_due > now:
        left = format_duration(next_due - now + 999)
        return Waits(request_id, kind, f"{what} in {left}", next_due)
    if is_open == "1" and not first and not int(fresh or 0):
        return Waits(request_id, "open", "open: its producer is still sending, or gone")
    pause = QueuePause(paused_until, now)
    kind = "queue" if pause.is_paused else "token"
    why = remedy(queue, pause) if pause.is_paused else "its next token is on its way"
    return Waits(request_id, kind, why, paused_until if pause.is_paused else 0)
