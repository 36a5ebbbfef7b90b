"""Checks the memory that requests of a queue take: blocks of streams, results that are kept.

It only reads, and its cost is bounded.
"""

from __future__ import annotations

from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.text import format_duration, size
from fairlane.errors import FairlaneError
from fairlane.operations.batching import run_each
from fairlane.operations.diagnosis.finding import WARN, Finding
from fairlane.operations.diagnosis.server_checks import Facts
from fairlane.operations.lease.tokens import marker_ms
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import read_info
from fairlane.protocol.steps import Batch, Command, OnNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Operation

GOOD_BYTES = 2048  # docs/concepts/sizing.md says why
_MOST = 500  # requests read
_MANY = 100  # so many small ones are a finding
_SMALL = 20  # sub-requests of a small one
_ENDINGS = 100  # how many of the last ended requests are read
_STEPS = 5  # for each ended request
_MARKER_BYTES = 150
_RATE_OVER_S = 60.0  # the shortest time for a rate: a burst is no rate
_SLOW_RATE = 10  # requests a second; below it a rate has a decimal


def small_requests(queue: str, nodes: Sequence[Any]) -> Operation[list[Finding]]:
    """Finds many requests that take more memory than their content; `nodes[0]` has the setting."""
    name = b"stream-node-max-bytes"
    try:
        _, size = yield OnNode(nodes[0], Command(b"CONFIG", b"GET", name))
    except (FairlaneError, ValueError):  # not readable
        return []
    if int(size) <= GOOD_BYTES:
        return []
    ids = yield Command(b"ZRANGE", keys.active(queue), 0, _MOST - 1)
    streams = [keys.request_keys(one.decode("utf-8", "replace"))[0] for one in ids]
    lengths = yield from run_each([Command(b"XLEN", stream) for stream in streams])
    found = sum(isinstance(length, int) and 0 < length <= _SMALL for length in lengths)
    if found < _MANY:
        return []
    what = (
        f"{found} of {len(ids)} requests have at most {_SMALL} sub-requests in a stream, "
        f"which sets {int(size) // 1024} KiB aside for them, and as much again for their results"
    )
    remedy = f"CONFIG SET stream-node-max-bytes {GOOD_BYTES}, and in redis.conf"
    return [Finding("small requests", WARN, what, remedy)]


class Left(NamedTuple):
    """What one ended request leaves: how many bytes, and for how many ms."""

    retain_ms: int
    size: int

    @property
    def byte_seconds(self) -> float:
        """Returns the memory that one such request a second takes in the end, with its marker."""
        marker = (self.retain_ms + marker_ms(self.retain_ms)) * _MARKER_BYTES
        return (self.retain_ms * self.size + marker) / 1000


def retention(queue: str, nodes: Sequence[Any]) -> Operation[list[Finding]]:
    """Warns if ended requests, at the recent rate, fill the memory before they expire."""
    rate, ended = yield from _endings(queue)
    left = yield from _left_by(ended)
    if not left:
        return []
    try:
        memory = yield from _memory(nodes)
    except FairlaneError:  # not readable
        return []
    need = rate * mean(one.byte_seconds for one in left)
    if not memory or need <= memory:
        return []
    shown = f"{rate:,.0f}" if rate >= _SLOW_RATE else f"{rate:.1f}"
    bytes_each, kept_ms = mean(one.size for one in left), mean(one.retain_ms for one in left)
    kept = format_duration(int(kept_ms))
    what = (
        f"{shown} requests end a second, and each keeps {size(bytes_each)} for {kept}"
        f": that grows to {size(need)}, and the memory is {size(memory)}"
    )
    remedy = (
        "shorten the retention of results (--retain 0s to 366d), make room with fairlane delete "
        "--state ended, or give Redis more memory"
    )
    return [Finding("retention", WARN, what, remedy)]


def _endings(queue: str) -> Operation[tuple[float, list[str]]]:
    """Returns how many requests end a second, and the last of them."""
    log = keys.completed(queue)
    count, first, last, (seconds, _) = yield Batch(
        [
            Command(b"XLEN", log),
            Command(b"XRANGE", log, b"-", b"+", b"COUNT", 1),
            Command(b"XREVRANGE", log, b"+", b"-", b"COUNT", _ENDINGS),
            Command(b"TIME"),
        ]
    )
    if not first:
        return 0.0, []
    since_s = int(first[0][0].partition(b"-")[0]) / 1000
    rows = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in last]
    names = [row.get(b"id", b"").decode("utf-8", "replace") for row in rows]
    return count / max(int(seconds) - since_s, _RATE_OVER_S), list(dict.fromkeys(names))


def _left_by(ended: Sequence[str]) -> Operation[list[Left]]:
    """Returns what these requests left, as far as it has not expired and may be read."""
    steps: list[Command] = []
    for name in ended:
        kept = (keys.request_hash(name), keys.results(name), keys.dead(name), keys.errors(name))
        steps += [hmget(name, "retain_ms"), *(Command(b"MEMORY", b"USAGE", key) for key in kept)]
    replies = yield from run_each(steps)
    found = []
    for at in range(0, len(replies), _STEPS):
        policy, *sizes = replies[at : at + _STEPS]
        if any(isinstance(reply, FairlaneError) for reply in (policy, *sizes)):
            continue
        (retain_ms,) = parse_fields(("retain_ms",), policy)
        if retain_ms:
            kept_ms = max(int(retain_ms), settings.LEAST_TOMBSTONE_MS)
            found.append(Left(kept_ms, sum(size or 0 for size in sizes)))
    return found


def _memory(nodes: Sequence[Any]) -> Operation[int]:
    """Returns how many bytes all nodes may use: each its maxmemory, or all of its machine."""
    total = 0
    for node in nodes:
        facts = Facts(read_info((yield OnNode(node, Command(b"INFO", b"memory")))), None)
        total += facts.number("maxmemory") or facts.number("total_system_memory")
    return total
