"""How much work of a queue could start now if there were workers: a signal for autoscaling.

It is counted from the requests themselves, so stale and lost tokens do not matter. The cost is
bounded: for each request three fields and one or two counts, 100 commands in a round trip.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.found import Demand
from fairlane.operations.batching import run_all
from fairlane.operations.blockers.facts import read_queue
from fairlane.operations.find.waiting import count_stale, read_waiting, without_stale
from fairlane.operations.find.workers import list_workers
from fairlane.operations.lease.shards import read_shards
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Operation

MOST_REQUESTS = 10_000  # requests that are read; if there are more, tokens are counted
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
    active = keys.active(queue)
    count, names = yield Batch(
        [Command(b"ZCARD", active), Command(b"ZRANGE", active, 0, MOST_REQUESTS - 1)]
    )
    if count > MOST_REQUESTS:
        more, held = yield from _by_tokens(queue)
    else:
        ids = [name.decode("utf-8", "replace") for name in names]
        more, held, count = yield from _by_requests(queue, ids, home.pause.now_ms)
    is_paused = home.pause.is_paused
    return Demand(queue, 0 if is_paused else more, held, count, is_paused, count <= MOST_REQUESTS)


def _by_requests(queue: str, ids: Sequence[str], now_ms: int) -> Operation[tuple[int, int, int]]:
    """Returns the demand, the leases, and how many requests are unfinished."""
    rows = yield from run_all([hmget(name, *FIELDS) for name in ids])
    found = []
    for name, row in zip(ids, rows, strict=True):
        fields = dict(zip(FIELDS, parse_fields(FIELDS, row), strict=True))
        if fields["queue"] == queue and fields["limit"]:
            found.append((name, fields))
    counts = yield from run_all([Command(b"ZCARD", keys.leases(name)) for name, _ in found])
    pairs = zip(found, counts, strict=True)
    open_ones = [(name, fields, held) for (name, fields), held in pairs]
    return (yield from more_of(open_ones, now_ms)), sum(counts), len(found)


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
    left = number("total") - number("done") - number("dead")
    return _Open(name, room, number("fresh"), has_retries=left > number("fresh"))


def _by_tokens(queue: str) -> Operation[tuple[int, int]]:
    """Returns the tokens in the lanes without the stale ones, and what workers last reported."""
    spread = yield from read_shards(queue)
    tokens = yield from read_waiting(queue, spread.served)
    stale = yield from count_stale(queue, tokens)
    lanes, _ = without_stale(tokens.counts, stale)
    page = yield from list_workers(queue)
    return sum(lanes.values()), sum(one.leases for one in page.workers if one.is_alive)
