"""What the workers measured: how long sub-requests waited and ran, by priority."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fairlane.common.histogram import Distribution
from fairlane.protocol import keys
from fairlane.protocol.request_hash import read
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.protocol.steps import Arg

COUNTS = ("failed", "timeouts")
_MOST = 1000  # fields of one call


@dataclass(slots=True)
class Measured:
    """One priority, or all of them: waited in ms, ran in microseconds, and how often it failed."""

    waited: Distribution = field(default_factory=Distribution)
    ran: Distribution = field(default_factory=Distribution)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    def parts(self) -> list[tuple[str, Distribution]]:
        """Returns the distributions by name."""
        return [("waited", self.waited), ("ran", self.ran)]


def tally(
    queue: str,
    priority: int,
    waited: Mapping[int, int],
    ran: Mapping[int, int],
    counts: Mapping[str, int],
) -> list[Call]:
    """Returns the calls that add measurements: value -> how often, in ms and in microseconds."""
    fields: dict[str, int] = {
        f"{priority}:{name}": count for name, count in counts.items() if count
    }
    for name, values in (("waited", waited), ("ran", ran)):
        if values:
            found = Distribution()
            found.add(values)
            fields[f"{priority}:{name}:count"] = found.count
            fields[f"{priority}:{name}:sum"] = found.sum
            fields[f"{priority}:{name}:max"] = found.max
            for bucket, count in found.buckets.items():
                fields[f"{priority}:{name}:{bucket}"] = count
    flat: list[Arg] = [part for pair in fields.items() for part in pair]
    return [
        library().add_stats((keys.stats(queue),), numbers=flat[first : first + 2 * _MOST])
        for first in range(0, len(flat), 2 * _MOST)
    ]


def tally_timeout(queue: str, request_id: str) -> Operation[None]:
    """Adds a call of the handler that was killed: its process cannot report it."""
    (priority,) = yield from read(request_id, "priority")
    if priority:
        yield Batch(tally(queue, int(priority), {}, {}, {"failed": 1, "timeouts": 1}))


def read_stats(queue: str) -> Operation[dict[int, Measured]]:
    """Returns priority -> what was measured, without priorities that have no measurement."""
    flat = yield Command(b"HGETALL", keys.stats(queue))
    found: dict[int, Measured] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):  # up to 13,000 fields
        priority, kind, what = _parts(name)
        one = found.get(priority)
        if one is None:
            one = found[priority] = Measured()
        if what == "":
            one.counts[kind] = int(value)
            continue
        distribution = one.waited if kind == "waited" else one.ran
        if isinstance(what, int):
            distribution.buckets[what] = int(value)
        else:
            setattr(distribution, what, int(value))
    return dict(sorted(found.items()))


@lru_cache(maxsize=1 << 14)  # a dashboard reads the same names once a second
def _parts(name: bytes) -> tuple[int, str, str | int]:
    """Returns the priority, the kind, and the bucket or another part of a distribution."""
    priority, kind, what = f"{name.decode()}:".split(":")[:3]
    return int(priority), kind, int(what) if what.isdigit() else what


def forget_stats(queue: str) -> Operation[Any]:
    """Deletes all measurements of the queue."""
    return (yield Command(b"DEL", keys.stats(queue)))


def all_of(found: Mapping[int, Measured]) -> Measured:
    """Returns the queue as a whole."""
    whole = Measured()
    for one in found.values():
        whole.waited.merge([one.waited])
        whole.ran.merge([one.ran])
        for name, count in one.counts.items():
            whole.counts[name] = whole.counts.get(name, 0) + count
    return whole
