"""A frame is what one read of a queue adds to its history: rates, waiting times, counts by lane.

Workers send their measurements once a second. So a rate is the difference of two reads that are a
few seconds apart.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlane.common.histogram import Distribution
from fairlane.operations.lease import all_of

if TYPE_CHECKING:
    from fairlane.operations.lease import Measured
    from fairlane.operations.observe import Snapshot

MOST_SHARES = 12  # requests and tenants with most leases; the others are summed up as OTHERS
OTHERS = "(others)"
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Totals:
    """What workers have measured in all at `at_ms`; two of them make a rate."""

    at_ms: int
    measured: Measured

    @classmethod
    def of(cls, found: Snapshot) -> Totals:
        """Returns the totals of a snapshot."""
        return cls(found.now_ms, all_of(found.measured))


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened between two looks; None: there was no earlier look, or nothing was measured.

    Rates are per second, `waited_ms` and `ran_ms` the quantiles 50, 90 and 99 %.
    """

    done: float | None = None
    failed: float | None = None
    waited_ms: tuple[float, ...] | None = None
    ran_ms: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """The leases of one request."""

    id: str
    priority: int
    tenant: str
    held: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A queue at one moment, as history keeps it. `number` grows by one with each frame.

    `lanes` is priority -> tokens that wait, `held_by_lane` priority -> leases. `tenants` is tenant
    -> leases. `units` is how many calls the workers make concurrently, `held` their leases.
    """

    number: int
    at_ms: int
    rates: Rates
    oldest_ms: int
    unfinished: int
    demand: int
    delayed: int
    held: int
    units: int
    alive: int
    busy: int
    late: int
    dead: int
    used: int
    is_paused: bool
    is_exact: bool
    lanes: dict[int, int]
    held_by_lane: dict[int, int]
    tenants: dict[str, int]
    shares: list[Share]


def rates_between(before: Totals | None, after: Totals) -> Rates:
    """Returns the rates between two looks. Totals that fell were reset: they count from 0."""
    if before is None or after.at_ms <= before.at_ms:
        return Rates()
    seconds = (after.at_ms - before.at_ms) / 1000
    old, new = before.measured, after.measured
    failed = new.counts["failed"] - old.counts["failed"]
    ran = _difference(old.ran, new.ran)
    return Rates(
        done=ran.count / seconds,
        failed=(failed if failed >= 0 else new.counts["failed"]) / seconds,
        waited_ms=_quantiles(_difference(old.waited, new.waited), 1),
        ran_ms=_quantiles(ran, 1000),
    )


def _difference(old: Distribution, new: Distribution) -> Distribution:
    if new.count < old.count:
        return new
    buckets = Counter({name: count - old.buckets[name] for name, count in new.buckets.items()})
    return Distribution(new.count - old.count, new.sum - old.sum, new.max, +buckets)


def _quantiles(found: Distribution, unit: int) -> tuple[float, ...] | None:
    if not found.count:
        return None
    return tuple(found.quantile(share) / unit for share in QUANTILES)


def frame_of(number: int, found: Snapshot, rates: Rates) -> Frame:
    """Returns the frame of a snapshot."""
    totals = found.worker_totals
    return Frame(
        number=number,
        at_ms=found.now_ms,
        rates=rates,
        oldest_ms=max(0, found.now_ms - found.oldest.submitted_ms) if found.oldest else 0,
        unfinished=found.unfinished,
        demand=found.demand.demand,
        delayed=found.delayed,
        held=found.demand.held,
        units=totals.units,
        alive=totals.alive,
        busy=totals.busy,
        late=totals.late,
        dead=sum(lane.dead for lane in found.lanes),
        used=sum(node.used for node in found.servers.nodes),
        is_paused=found.is_paused,
        is_exact=found.is_exact,
        lanes={lane.priority: lane.tokens for lane in found.lanes if lane.tokens},
        held_by_lane={lane.priority: lane.held for lane in found.lanes if lane.held},
        tenants=_most(found.held_by_tenant()),
        shares=_shares(found),
    )


def _most(counts: dict[str, int]) -> dict[str, int]:
    """Returns the largest counts, and the sum of the others."""
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    kept = {name: counts[name] for name in ordered[:MOST_SHARES]}
    if rest := sum(counts[name] for name in ordered[MOST_SHARES:]):
        kept[OTHERS] = rest
    return kept


def _shares(found: Snapshot) -> list[Share]:
    held = sorted((one for one in found.requests if one.held), key=lambda one: -one.held)
    return [Share(one.id, one.priority, one.tenant, one.held) for one in held[:MOST_SHARES]]
