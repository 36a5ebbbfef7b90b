"""Completes leases and acquires the next ones in one call, where one server has all keys.

Elsewhere a unit takes the same steps one by one: complete, dispatch, pop, acquire.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.operations.lease.leases import signed, words_of
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import SingleServer, TextCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Slice
    from fairlane.operations.lease.leases import Part
    from fairlane.protocol.steps import Arg

# In the order of its signature: a unit makes thousands of these calls a second.
_PARAMS = (
    "now",
    "least",
    "longest",
    "most",
    "place",
    "op",
    "ttl",
    "worker",
    "started",
    "want",
    "shared",
    "measured",
)


@dataclass(frozen=True, slots=True)
class Exchanger:
    """The unit that makes exchanges, one at a time: its worker, and its place among the units."""

    queue: str
    worker: str
    started: str
    place: bytes
    keys: tuple[bytes, ...]  # of the dispatch slot, besides the lanes


def exchange(
    unit: Exchanger,
    op: bytes,
    settled: Iterable[tuple[Slice, Part]],
    *,
    lanes: Sequence[bytes] = (),
    want: int = 0,
    shared: bool = False,
    sizes: Sequence[tuple[str, int]] = (),
) -> SingleServer:
    """Returns the call that settles leases, pops up to `want` tokens and acquires with them.

    `lanes` are popped from, the most urgent one first. `sizes`: how many sub-requests a slice of
    these requests may have; 1 for any other. Requests with a size share the time of their sizes.
    Ops of a unit grow. With the op of an earlier exchange, and nothing else, the call returns the
    leases of the earlier one. If the earlier one arrives later, it acquires nothing.
    """
    args: list[Arg] = [
        b"", settings.MARKER_LEAST_MS, settings.MARKER_MS, settings.LOG_MOST, unit.place, op,
        settings.TAKEN_TTL_MS, unit.worker, unit.started, want, b"1" if shared else b"",
        len(sizes), *(word for pair in sizes for word in pair),
    ]  # fmt: skip
    for held, (ids, results, verdicts) in settled:
        args += (held.request_id, held.k, held.fence, held.op, len(ids), len(verdicts))
        args += ids
        args += results
        if verdicts:
            args += words_of(verdicts)
    names = (*unit.keys, *(lanes or keys.lanes(unit.queue)[:1]))
    return SingleServer(TextCall(signed(library(), "exchange", _PARAMS), names, args))


@lru_cache(maxsize=1024)
def exchange_unit(queue: str, worker: str, started: str, unit: int) -> Exchanger:
    """Returns the exchanger of a worker's unit, by the unit's number."""
    log = keys.active(queue), keys.logged(queue), keys.completed(queue)
    names = (*log, *keys.bound(queue), keys.taken(queue, worker), *keys.turns(queue))
    return Exchanger(queue, worker, started, b"x%d" % unit, names)
