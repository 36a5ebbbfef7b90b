"""Reads a queue once a second for everyone who watches it, and keeps the last minutes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common import clock
from fairlane.common.histogram import Distribution
from fairlane.common.text import exact
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.stats import all_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from fairlane.operations.observe import Snapshot
    from fairlane.operations.stats import Measured
    from fairlane.records import Demand


# ------------------------------------------------------------------ demand
# The demand of a queue for all callers of one server: one walk, however many call.
#
# A snapshot has the exact demand of a queue with few requests. With more requests it takes a walk
# over all of them. Walks are made while there are callers, with pauses, and callers get the result
# of the last one.


DEMAND_EVERY_S = 5.0  # from the beginning of a walk to that of the next, at least
REST = 4.0  # a pause is so many times as long as the walk before it
ASKED_S = 60.0  # walks go on for so long after the last call
OLDEST_S = 120.0  # no older result is shown
PATIENCE_S = 0.05  # a call takes so long, with its snapshot, if the first walk has not ended
_log = logging.getLogger(__name__)


class DemandNow(NamedTuple):
    """A demand, and how long ago it was read."""

    demand: Demand
    age_s: float


class SharedDemand:
    """The demand as `snapshot` has it if that is exact, else the result of the last `walk`."""

    def __init__(
        self,
        snapshot: Callable[[], Awaitable[Snapshot]],
        walk: Callable[[], Awaitable[Demand]],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._snapshot, self._walk, self._patience_s = snapshot, walk, patience_s
        self._last: Demand | None = None
        self._read_at = self._asked_at = self._first_began_at = 0.0
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def get(self) -> DemandNow:
        """Returns the demand, which is not exact before the first walk ends. Raises RedisError."""
        began_at = clock.mono_s()
        found = (await self._snapshot()).demand
        if found.is_exact:
            return DemandNow(found, 0.0)
        self._asked_at = clock.mono_s()
        if self._task is None or self._task.done():
            self._first.clear()
            self._first_began_at = began_at
            self._task = asyncio.create_task(self._walk_on())
        # A walk that has taken longer is long: later calls do not wait for it again.
        left_s = self._first_began_at + self._patience_s - clock.mono_s()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left_s)):
                await self._first.wait()
        age_s = clock.mono_s() - self._read_at
        if self._last is None or age_s > OLDEST_S:
            return DemandNow(found, 0.0)
        is_paused = found.is_paused
        backlog = replace(self._last.backlog, is_paused=is_paused)
        last = replace(self._last, is_paused=is_paused, backlog=backlog)
        if is_paused:
            last = replace(last, demand=0, backlog=replace(backlog, empty_ms=None))
        return DemandNow(last, age_s)

    async def _walk_on(self) -> None:
        """Walks while there are calls; the pauses are longer than the walks."""
        while clock.mono_s() < self._asked_at + ASKED_S:
            began = clock.mono_s()
            try:
                self._last, self._read_at = await self._walk(), began
                self._first.set()
            except FairlaneError as error:
                _log.warning("the demand of the queue cannot be read: %s", error)
            took = clock.mono_s() - began
            await asyncio.sleep(max(DEMAND_EVERY_S - took, REST * took))

    def stop(self) -> None:
        """Ends the walks."""
        if self._task is not None:
            self._task.cancel()


# ------------------------------------------------------------------ frames
# A frame is what one read of a queue adds to its history: rates, waiting times, counts by lane.
#
# Workers send their measurements once a second. So a rate is the difference of two reads that are
# a few seconds apart.


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
    tenant: str | None
    held: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A queue at one moment, as history keeps it. `number` grows by one with each frame.

    `waiting` is that of its backlog. `lanes` is priority -> tokens that wait, `held_by_lane`
    priority -> leases. `tenants` is tenant -> leases. `units` is how many calls the workers make
    concurrently, `held` their leases.
    """

    number: int
    at_ms: int
    rates: Rates
    waiting: int
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
        waiting=found.backlog.waiting,
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


EVERY_S = 1.0
KEEP_S = 300.0
RATE_S = 5.0  # two reads that make a rate are about so far apart
ANSWER_S = 3.0  # a read that takes longer counts as no answer


class Poller:
    """Reads a queue while it has viewers. Any number of viewers costs one read a second.

    `frames` are the last `keep_s` seconds, `latest` is the newest snapshot. `away` is a sentence if
    the last read failed, else ""; `is_cut_off`: it failed because Redis did not answer.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Snapshot]],
        *,
        every_s: float = EVERY_S,
        keep_s: float = KEEP_S,
    ) -> None:
        self.every_s, self.keep_s = every_s, keep_s
        self.frames: deque[Frame] = deque(maxlen=max(1, round(keep_s / every_s)))
        self.latest: Snapshot | None = None
        self.away, self.is_cut_off = "", False
        self.changes = 0  # reads, and outages
        self._read = read
        self._totals: deque[Totals] = deque(maxlen=max(2, round(RATE_S / every_s) + 1))
        self._number = 0
        self._changed = asyncio.Condition()
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None

    async def next_change(self, seen: int) -> int:
        """Returns `changes` as soon as it is not `seen` any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.changes != seen)
        return self.changes

    def after(self, number: int) -> list[Frame]:
        """Returns the frames after this one, oldest first."""
        return [one for one in self.frames if one.number > number]

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Reads the queue while any viewer is in this context."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                task, self._task = self._task, None
                task.cancel()

    async def _poll(self) -> None:
        while True:
            began = clock.mono_s()
            await self.look()
            await asyncio.sleep(max(0.0, began + self.every_s - clock.mono_s()))

    async def look(self) -> None:
        """Makes one look, and wakes the watchers if anything has changed."""
        is_cut_off = True
        try:
            async with asyncio.timeout(max(ANSWER_S, self.every_s)):
                found = await self._read()
        except TimeoutError:
            away = f"Redis has not answered for {exact(max(ANSWER_S, self.every_s))} s"
        except FairlaneError as error:
            away, is_cut_off = str(error), isinstance(error, RedisUnreachable)
        except Exception:  # noqa: BLE001  a bug must not end the looks, or all watchers wait for ever
            away, is_cut_off = "the queue cannot be read", False
            if not self.away:
                _log.exception("%s", away)
        else:
            self._add(found)
            away, is_cut_off = "", False
        if not away or not self.away:  # an outage is one change, however long it is
            async with self._changed:
                self.away, self.is_cut_off = away, is_cut_off
                self.changes += 1
                self._changed.notify_all()

    def _add(self, found: Snapshot) -> None:
        totals = Totals.of(found)
        rates = rates_between(self._totals[0] if self._totals else None, totals)
        self._totals.append(totals)
        while self._totals[0].at_ms < found.now_ms - 2 * RATE_S * 1000:
            self._totals.popleft()  # without a watcher meanwhile
        while self.frames and self.frames[0].at_ms < found.now_ms - self.keep_s * 1000:
            self.frames.popleft()
        self._number += 1
        self.latest = found
        self.frames.append(frame_of(self._number, found, rates))
