"""Estimates when a request starts and ends, from what its queue's workers measured.

The workers serve the more urgent lanes first, and the requests of one lane in turn. The estimate
assumes that nothing more urgent comes, and that all sub-requests take equally long.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.text import format_duration
from fairlane.found import Estimate
from fairlane.operations.batching import run_all
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.common.rate import Rate
    from fairlane.found import Cause, WorkerState
    from fairlane.operations.blockers.facts import RequestFacts
    from fairlane.operations.blockers.place import Neighbours
    from fairlane.protocol.steps import Operation

MOST_REQUESTS = 500  # requests ahead of this one that are read
_FIELDS = ("limit", "priority", "total", "done", "dead", "fresh")
_SLOW_S, _SLOW = 1.0, 3.0  # a lease is slow after a second and three times the usual call
_SLICE_S = 0.02  # the time that the work of one token takes at least
# Causes that end at an unknown time.
_OPEN_ENDED = {
    "paused": "a paused request",
    "cancelling": "a request that is being cancelled",
    "expiring": "a request past its deadline",
    "after": "a request that waits for others",
    "open": "an open request without work",
    "workers": "a queue without workers",
    "task": "what workers gave back",
}


class Rival(NamedTuple):
    """Another request: how many permits it may use and holds, and what is left of it."""

    limit: int
    priority: int
    left: int
    held: int


class Capacity(NamedTuple):
    """The live workers: calls that they make concurrently and finish in a second, their leases."""

    units: int = 0
    per_s: float = 0.0
    leases: int = 0

    @property
    def are_busy(self) -> bool:
        """Returns True if each unit had a lease at the last heartbeat."""
        return 0 < self.units <= self.leases


def capacity_of(workers: Sequence[WorkerState]) -> Capacity:
    """Returns the sum of the live workers; one that has measured nothing counts as the others."""
    alive = [one for one in workers if one.is_alive]
    units = sum(one.units for one in alive)
    measured = sum(one.units for one in alive if one.per_s)
    per_s = sum(one.per_s for one in alive)
    leases = sum(one.leases for one in alive)
    return Capacity(units, per_s * units / measured if measured else 0.0, leases)


def read_rivals(ids: Sequence[str]) -> Operation[dict[str, Rival]]:
    """Returns the first MOST_REQUESTS of these requests, without those that are gone."""
    names = ids[:MOST_REQUESTS]
    rows = yield from run_all([hmget(name, *_FIELDS) for name in names])
    found, busy = {}, []
    for name, row in zip(names, rows, strict=True):
        limit, priority, total, done, dead, fresh = map(_number, parse_fields(_FIELDS, row))
        left = max(0, total - done - dead)
        if limit:
            found[name] = Rival(limit, priority, left, 0)
            busy += [name] if left > fresh else []  # else no lease has any of it
    counts = yield from run_all([Command(b"ZCARD", keys.leases(name)) for name in busy])
    for name, count in zip(busy, counts, strict=True):
        found[name] = found[name]._replace(held=count)
    return found


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def urgent_at_work(rivals: dict[str, Rival], near: Neighbours) -> dict[str, Rival]:
    """Returns the more urgent requests that workers hold; as a rule they have no token ahead."""
    ahead = set(near.ids)
    return {
        name: one
        for name, one in rivals.items()
        if name not in ahead and one.priority < near.lane and one.held
    }


def estimate(
    facts: RequestFacts,
    causes: Sequence[Cause],
    capacity: Capacity,
    near: Neighbours | None,
    rivals: dict[str, Rival],
    queue_rate: Rate | None = None,
) -> Estimate:
    """Returns when the request starts and ends; see Estimate for what is None."""
    rates = [*facts.progress.rates, *([queue_rate] if queue_rate is not None else [])]
    for cause in causes:
        if cause.kind in _OPEN_ENDED or (cause.kind == "queue" and not cause.until_ms):
            what = _OPEN_ENDED.get(cause.kind, "a queue that is paused until it is resumed")
            return Estimate(why_not=f"{what} has no time to start")
    if facts.progress.given_back is not None and facts.retries:
        return Estimate(why_not=f"{_OPEN_ENDED['task']} has no time to start")
    if capacity.per_s <= 0:
        why_not = "the workers have not finished a sub-request yet that was measured"
        return Estimate(units=capacity.units, why_not=why_not)
    if (oldest_s := _oldest_s(facts)) > max(_SLOW_S, _SLOW * capacity.units / capacity.per_s):
        shown = format_duration(round(oldest_s * 1000))
        why_not = f"a worker has held a part of it for {shown}, longer than calls took so far"
        return Estimate(0, None, capacity.per_s, capacity.units, why_not)
    opens_s = max([0, *(cause.until_ms - facts.now_ms for cause in causes)]) / 1000
    wait_s = 0.0 if near is None else _wait_s(near, capacity, rivals)
    starts_s = max(opens_s, wait_s)
    is_started = facts.progress.held > 0
    deadline_s = (facts.progress.deadline_ms or math.inf) / 1000 - facts.now_ms / 1000
    if not is_started and starts_s >= deadline_s:
        why_not = "its deadline passes before it starts"
        return Estimate(0, None, capacity.per_s, capacity.units, why_not)
    ends_s = (opens_s if is_started else starts_s) + _work_s(facts, capacity, near, rivals, rates)
    ends_s = min(ends_s, deadline_s)
    return Estimate(
        starts_ms=0 if is_started else facts.now_ms + round(starts_s * 1000),
        ends_ms=None if facts.progress.is_open else facts.now_ms + round(ends_s * 1000),
        per_s=capacity.per_s,
        units=capacity.units,
    )


def _oldest_s(facts: RequestFacts) -> float:
    """Returns how long the oldest lease has been held: a fence is the time of its acquire in us."""
    return max([0.0, *(facts.now_ms / 1e3 - int(one.fence) / 1e6 for one in facts.holders)])


def _wait_s(near: Neighbours, capacity: Capacity, rivals: dict[str, Rival]) -> float:
    """Returns how long it takes until a worker takes the request's next token.

    If the more urgent requests may use every unit, their work comes first. Else a unit is left.
    """
    lanes = {one.token.request_id: one.lane for one in near.ahead}
    urgent = [name for name, lane in lanes.items() if lane < near.lane]
    known = [rivals[name] for name in urgent if name in rivals]
    share = len(urgent) / len(known) if known else 0.0  # those that were not read are like these
    at_work = urgent_at_work(rivals, near).values()
    used = share * sum(min(one.limit, one.left) for one in known)
    used += sum(min(one.limit, one.left) for one in at_work)
    work = 0.0
    if used >= capacity.units:
        work = share * sum(one.left for one in known) + sum(one.left for one in at_work)
    same = sum(count for lane, count in near.place.ahead.items() if lane == near.lane)
    same += capacity.are_busy  # a unit is free when one call of its slice ends
    if not near.place.is_exact:
        work += max(0, near.place.place - 1 - len(near.ahead))  # at least one for each token
    a_token_s = max(1 / capacity.per_s, _SLICE_S / max(1, capacity.units))
    return work / capacity.per_s + same * a_token_s


def _work_s(
    facts: RequestFacts,
    capacity: Capacity,
    near: Neighbours | None,
    rivals: dict[str, Rival],
    rates: Sequence[Rate],
) -> float:
    """Returns how long the request takes from its start, beside the other requests of its lane."""
    progress = facts.progress
    unit_per_s = capacity.per_s / max(1, capacity.units)
    own_per_s = min(capacity.per_s, unit_per_s * progress.limit)
    for rate in rates:
        own_per_s = min(own_per_s, 1e6 / (rate.interval_us * rate.weight))
    work_s = progress.left / own_per_s
    if near is None:
        return work_s
    names = {*near.behind, *(one.token.request_id for one in near.ahead if one.lane == near.lane)}
    beside = [rivals[name] for name in names if name in rivals]
    together = progress.left + sum(min(progress.left, one.left) for one in beside)
    return max(work_s, together / capacity.per_s)
