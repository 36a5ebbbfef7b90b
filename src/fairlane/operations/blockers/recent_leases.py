"""Reads which workers hold the permits of a request, and which leases were settled last.

A lease that is over left no record but its results: each entry of `out` has the worker, the time,
and how long its calls took. So the last entries say which worker held a permit when. The cost is
bounded in entries and in bytes, because an entry has the bodies of its results.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fairlane.common.histogram import bounds_of, bucket_of
from fairlane.errors import InvalidArgument
from fairlane.found import HeldLease, RecentLeases, SettledLease
from fairlane.operations.blockers.facts import MOST_PERMITS, read_holders
from fairlane.operations.control.completion import parse_results
from fairlane.operations.control.completion_log import is_place
from fairlane.operations.control.request_state import not_found
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlane.protocol.steps import Operation

MOST_SETTLED = 256
MOST_BYTES = 2 << 20  # after so many bytes of results no older entry is read
_FIRST = 2  # entries of the first page: how large they are is not known yet
_FIELDS = ("state", "born")


def recent_leases(request_id: str, after: str = "") -> Operation[RecentLeases]:
    """Returns the leases of a request: those held now, and the last ones that were settled.

    Only leases that were settled after the one with the `log_id` `after` are returned. Raises
    RequestNotFound, InvalidArgument.
    """
    if after and not is_place(after):
        raise InvalidArgument(
            f"place {after[:60]!r} is not valid: name the log_id of a settled lease"
        )
    row, held, time = yield Batch(
        [
            hmget(request_id, *_FIELDS),
            Command(b"ZRANGE", keys.leases(request_id), 0, MOST_PERMITS - 1, b"WITHSCORES"),
            Command(b"TIME"),
        ]
    )
    state, born = parse_fields(_FIELDS, row)
    if state in {"", "abandoned"}:
        raise not_found(request_id)
    until = {name.decode(): int(float(score)) for name, score in _pairs(held)}
    holders = yield from read_holders(request_id, [name.encode() for name in until])
    leases = [
        HeldLease(int(one.k), one.worker, int(one.fence) // 1000, until[one.k], int(one.owed))
        for one in holders
    ]
    # A lease that was settled after the first read is among those held, too.
    entries, is_whole = yield from _last_entries(request_id, after, time_ms(time))
    settled = [_settled(entry_id, fields, int(born or 0)) for entry_id, fields in entries]
    held_now = sorted(leases, key=lambda lease: lease.permit)
    return RecentLeases(held_now, settled[::-1], is_whole, time_ms(time))


def _pairs(row: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(row[::2], row[1::2], strict=True)


def _last_entries(
    request_id: str, after: str, until_ms: int
) -> Operation[tuple[list[tuple[bytes, list[bytes]]], bool]]:
    """Returns the last entries of `out`, newest first, and whether no older one is left out."""
    out, end, count, size = keys.results(request_id), b"%d" % until_ms, _FIRST, 0
    start = f"({after}".encode() if after else b"-"
    found: list[tuple[bytes, list[bytes]]] = []
    while True:
        page = yield Command(b"XREVRANGE", out, end, start, b"COUNT", count)
        found += page
        size += sum(len(field) for _, fields in page for field in fields)
        left = min(MOST_SETTLED - len(found), (MOST_BYTES - size) * len(found) // max(size, 1))
        if len(page) < count or left <= 0:
            return found, len(page) < count
        end, count = b"(" + page[-1][0], left


def _settled(entry_id: bytes, fields: list[bytes], born: int) -> SettledLease:
    results = parse_results(fields)
    at_ms = int(entry_id.partition(b"-")[0])
    done = [one for one in results if one.status == "done"]
    ran_ms = sum(one.ran_ms for one in results)
    first = born + min((one.waited_ms for one in results), default=0)
    return SettledLease(
        log_id=entry_id.decode(),
        worker=results[0].worker if results else "",
        began_ms=min(at_ms, max(first, int(at_ms - ran_ms))),
        settled_ms=at_ms,
        done=len(done),
        dead=len(results) - len(done),
        waited=_buckets(1000 * one.waited_ms for one in done),
        ran=_buckets(round(1000 * one.ran_ms) for one in done),
    )


def _buckets(times_us: Iterable[int]) -> Mapping[float, int]:
    """Returns how many times are in each bucket of common/histogram.py, by its smallest in ms."""
    counts = Counter(bucket_of(max(0, one)) for one in times_us)
    return {bounds_of(bucket)[0] / 1000: count for bucket, count in sorted(counts.items())}
