"""How much work of a queue could start now if there were workers: a signal for autoscaling.

It is counted from the requests themselves, so stale and lost tokens do not matter. It walks over
all unfinished requests, 1,000 in a part: one HMGET for each, and one or two counts for each that is
at work or waits for a retry. What many ask for shares one walk (live/demand.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.found import Demand
from fairlane.operations.batching import run_all
from fairlane.operations.blockers.facts import read_queue
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.common.rate import Rate
    from fairlane.protocol.steps import Operation

_PART = 1_000  # entries of `active` that one call reads
FIELDS = (
    "state",
    "queue",
    "limit",
    "deadline",
    "fresh",
    "total",
    "done",
    "dead",
    "opens",
    "rates",
)


OpenFields = tuple[str, dict[str, str], int]  # a request, its FIELDS, and its leases


class _Open(NamedTuple):
    """A request that may start more: its free permits, and its sub-requests without an attempt."""

    id: str
    room: int
    fresh: int
    has_retries: bool


def demand(queue: str) -> Operation[Demand]:
    """Returns how many more leases workers of a queue could take now."""
    home = yield from read_queue(queue)
    seen, scan = set[str](), "0"
    more = held = count = 0
    while True:
        cursor, flat = yield Command(b"ZSCAN", keys.active(queue), scan, b"COUNT", _PART)
        names = dict.fromkeys(name.decode("utf-8", "replace") for name in flat[::2])
        fresh = [name for name in names if name not in seen]  # a scan may return an entry twice
        seen.update(fresh)
        found = yield from _read_open(queue, fresh)
        more += yield from more_of(found, home.pause.now_ms)
        held += sum(one[2] for one in found)
        count += len(found)
        scan = cursor.decode()
        if scan == "0":
            break
    more = bounded(more, home.rate)
    is_paused = home.pause.is_paused
    return Demand(queue, 0 if is_paused else more, held, count, is_paused, is_exact=True)


def bounded(more: int, rate: Rate | None) -> int:
    """Returns the demand that the rate of the queue leaves, None = it has none."""
    return more if rate is None else min(more, rate.width)


def _read_open(queue: str, ids: Sequence[str]) -> Operation[list[OpenFields]]:
    """Returns the requests of this queue among `ids`; one that is gone is left out."""
    rows = yield from run_all([hmget(name, *FIELDS) for name in ids])
    found = []
    for name, row in zip(ids, rows, strict=True):
        fields = dict(zip(FIELDS, parse_fields(FIELDS, row), strict=True))
        if fields["queue"] == queue and fields["limit"]:
            found.append((name, fields))
    busy = [name for name, fields in found if _left(fields) > int(fields["fresh"] or 0)]
    counts = yield from run_all([Command(b"ZCARD", keys.leases(name)) for name in busy])
    held = dict(zip(busy, counts, strict=True))
    return [(name, fields, held.get(name, 0)) for name, fields in found]


def _left(fields: dict[str, str]) -> int:
    """Returns how many sub-requests are neither done nor dead.

    If all of them wait for their first delivery, no lease has any, and no retry is due.
    """
    total, done, dead = (int(fields[name] or 0) for name in ("total", "done", "dead"))
    return total - done - dead


def more_of(requests: Sequence[OpenFields], now_ms: int) -> Operation[int]:
    """Returns how many more leases workers could take of these requests."""
    open_ones = [_open(*one, now_ms) for one in requests]
    known = [one for one in open_ones if one is not None]
    unsure = [one for one in known if one.has_retries and one.fresh < one.room]
    due = yield from run_all(
        [Command(b"ZCOUNT", keys.retries(one.id), b"-inf", now_ms) for one in unsure]
    )
    retries = {one.id: number for one, number in zip(unsure, due, strict=True)}
    return sum(min(one.room, one.fresh + retries.get(one.id, 0)) for one in known)


def _open(name: str, fields: dict[str, str], held: int, now_ms: int) -> _Open | None:
    """Returns what a request may start, as lua/v1/lib/permits/mint.lua; None if that is nothing.

    A request with a rate has only as many tokens on their way as may start in a short time.
    """

    def number(field: str) -> int:
        return int(fields[field] or 0)

    is_overdue = 0 < number("deadline") <= now_ms
    if fields["state"] != "active" or is_overdue or number("opens") > now_ms:
        return None
    room = max(0, number("limit") - held)
    if fields["rates"]:
        room = min(room, int(fields["rates"].split()[0]))
    return _Open(name, room, number("fresh"), has_retries=_left(fields) > number("fresh"))
