"""Estimates when a request starts and ends, and how much work could start now."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.histogram import bounds_of, bucket_of
from fairlane.common.rate import parse_rates
from fairlane.common.text import format_duration
from fairlane.errors import FairlaneError, InvalidArgument, not_found
from fairlane.model import ENDED_STATES
from fairlane.operations import limit_keys
from fairlane.operations.after import NEVER_MS, Life, find_circles, read_lives, waiting_lives
from fairlane.operations.backlog import (
    WaitingRow,
    backlog_of,
    endings_of,
    newest_ended,
    workers_of,
)
from fairlane.operations.completion import is_place, parse_results
from fairlane.operations.limit_keys import KeyRoom
from fairlane.operations.pause import QueuePause, read_until
from fairlane.operations.rates import opens, parse_queue_rate
from fairlane.operations.request_state import detail_of, limits_in, number, progress_in
from fairlane.operations.shards import read_shards
from fairlane.operations.tokens import DELAYED, MOST_READ, are_queued, parse, read_waiting
from fairlane.operations.workers import LATEST_MS
from fairlane.protocol import keys, request_hash
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, run_all, run_each, run_each_or_error
from fairlane.records import (
    Demand,
    Estimate,
    HeldLease,
    LanePlace,
    RecentLeases,
    SettledLease,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.common.rate import Rate
    from fairlane.model import Token
    from fairlane.operations.tokens import Waiting
    from fairlane.options import Limits
    from fairlane.protocol.request_hash import HeldPermit
    from fairlane.records import Cause, KeyState, Progress, WorkerState


# ------------------------------------------------------------------ facts
# Reads the facts of a diagnosis: the request, its queue, and the requests that it waits for.
#
# The cost is bounded: one page of permits, and a few commands.


MOST_PERMITS = 1_000  # held permits whose workers are read
_MOST_OTHERS = 20  # of the requests that a request waits for, so many are read
_OTHER = ("state", "born", "total", "done", "dead")


class OtherRequest(NamedTuple):
    """A request that another one waits for; `state` is "" if it is gone or could not be read."""

    id: str
    state: str
    settled: int
    total: int

    @property
    def has_ended(self) -> bool:
        """Returns True if this request no longer holds up another one."""
        return not self.state or self.state in ENDED_STATES or self.state == "abandoned"


class RequestFacts(NamedTuple):
    """The facts of a request at `now_ms`, the time of its server.

    `fresh` sub-requests wait for their first delivery, `retries` for another one. Of the retries,
    `due` may start now; the first is due at `next_due_ms`. `holders` are at most MOST_PERMITS.
    """

    progress: Progress
    now_ms: int
    fresh: int
    retries: int
    due: int
    next_due_ms: int
    last_chunk_ms: int
    holders: list[HeldPermit]
    after: str  # "done" or "end"; "" = it waits for no other request
    others: list[OtherRequest]
    more_others: int
    rates_open_ms: int = 0  # when its rates allow the next start, if they hold it up
    rates: tuple[Rate, ...] = ()
    feed: str = ""  # the field `feed` of its hash
    circle: tuple[str, ...] = ()  # requests that wait for each other, one of which holds it up
    key: KeyState | None = None  # the key for which its first token waits
    key_place: int = 0  # of that token, in the line of the key

    @property
    def is_gate_open(self) -> bool:
        """Returns True if no delay, no rate and no other request holds up the start."""
        return (self.progress.opens_ms or 0) <= self.now_ms

    @property
    def ready(self) -> int:
        """Returns how many sub-requests may be delivered now, by lua/v1/lib/permits.lua."""
        return self.fresh + self.due if self.is_gate_open else 0

    @property
    def can_start(self) -> bool:
        """Returns True if the request waits for nothing but a worker."""
        free = self.progress.limit - self.progress.held
        return self.progress.state == "active" and self.ready > 0 and free > 0


class QueueFacts(NamedTuple):
    """A queue: its pause, how many of its workers beat, and its rate.

    `opens_ms` is when the rate allows the next start, 0 = now.
    """

    name: str
    pause: QueuePause
    workers: int
    rate: Rate | None = None
    opens_ms: int = 0


async def read_queue(queue: str) -> QueueFacts:
    """Returns what holds up all requests of a queue."""
    (until, text), time = await Batch(
        [Command(b"HMGET", keys.conf(queue), b"paused_until", b"rate"), Command(b"TIME")]
    )
    now_ms = time_ms(time)
    beats = await Command(b"ZCOUNT", keys.workers(queue), now_ms - LATEST_MS, b"+inf")
    rate = parse_queue_rate(queue, text)
    opens_ms = 0 if rate is None else await opens(rate, now_ms)
    return QueueFacts(queue, QueuePause(read_until(until), now_ms), beats, rate, opens_ms)


async def read_request(request_id: str) -> RequestFacts | None:
    """Returns what a request waits for; None if there is no such request."""
    leases, retries = keys.leases(request_id), keys.retries(request_id)
    fields, held, permits, waiting, first, time = await Batch(
        [
            Command(b"HGETALL", keys.request_hash(request_id)),
            Command(b"ZCARD", leases),
            Command(b"ZRANGE", leases, 0, MOST_PERMITS - 1),
            Command(b"ZCARD", retries),
            Command(b"ZRANGE", retries, 0, 0, b"WITHSCORES"),
            Command(b"TIME"),
        ]
    )
    detail = detail_of(fields)
    if not detail:
        return None
    progress = progress_in(request_id, detail, held)
    now_ms = time_ms(time)
    next_due_ms = int(float(first[1])) if first else 0
    due = 0
    if first and next_due_ms <= now_ms:
        due = await Command(b"ZCOUNT", retries, b"-inf", now_ms)
    rates = parse_rates(detail.get("rates", ""))
    mode, lives = read_lives(detail.get("after", ""))
    is_held_back = bool(mode) and progress.opens_ms == NEVER_MS
    left = [life for life in lives if not life.is_over] if is_held_back else []
    key, key_place = await _key_of(progress)
    waits = waiting_lives(progress.state, str(progress.opens_ms or 0), detail.get("after", ""))
    return RequestFacts(
        progress=progress,
        now_ms=now_ms,
        rates=rates,
        feed=detail.get("feed", ""),
        fresh=progress.waiting,
        retries=waiting,
        due=due,
        next_due_ms=next_due_ms,
        last_chunk_ms=number(detail, "last_ms"),
        holders=await read_holders(request_id, permits),
        after=mode if is_held_back else "",
        others=await _others(left[:_MOST_OTHERS]),
        more_others=max(0, len(left) - _MOST_OTHERS),
        rates_open_ms=await _rates_open(progress, rates, now_ms),
        circle=await _circle({request_id: waits}) if waits else (),
        key=key,
        key_place=key_place,
    )


async def _key_of(progress: Progress) -> tuple[KeyState | None, int]:
    """Returns the key for which a request waits, and its place in the key's line."""
    if progress.ended or not (progress.limits or progress.order_key):
        return None, 0
    found = await limit_keys.find_waiting(progress.queue, progress.id)
    if found is None:
        return None, 0
    try:
        name = found.key.removeprefix(limit_keys.ORDER)
        key = await limit_keys.read_key(progress.queue, name, order=name != found.key)
    except InvalidArgument:  # the key is free by now
        return None, 0
    return key, found.place


async def _rates_open(progress: Progress, rates: Sequence[Rate], now_ms: int) -> int:
    latest = 0
    for rate in rates if progress.is_rate_limited else ():
        latest = max(latest, await opens(rate, now_ms, progress.id))
    return latest


async def read_holders(request_id: str, names: list[bytes]) -> list[HeldPermit]:
    """Returns the holders of these permits, except permits that were just returned."""
    if not names:
        return []
    texts = await Command(b"HMGET", keys.permits(request_id), *names)
    pairs = zip(names, texts, strict=True)
    fields = {
        name.decode(): text.decode("utf-8", "replace") for name, text in pairs if text is not None
    }
    return list(request_hash.held(fields))


async def _circle(waiting: dict[str, list[Life]]) -> tuple[str, ...]:
    circles = await find_circles(waiting)
    return tuple(circles[0]) if circles else ()


async def _others(lives: list[Life]) -> list[OtherRequest]:
    rows = await run_each_or_error([hmget(life.id, *_OTHER) for life in lives])
    found = []
    for life, row in zip(lives, rows, strict=True):
        if isinstance(row, FairlaneError):
            found.append(OtherRequest(life.id, "unreadable", 0, 0))
            continue
        state, born, total, done, dead = parse_fields(_OTHER, row)
        if born != str(life.born):  # the id is free, or a later request has it
            state = ""
        found.append(OtherRequest(life.id, state, int(done or 0) + int(dead or 0), int(total or 0)))
    return found


# ------------------------------------------------------------------ recent leases
# Reads which workers hold the permits of a request, and which leases were settled last.
#
# The only record of a settled lease is its results. Each entry of `out` has the worker, the time,
# and how long the calls took, so the last entries show which worker held a permit at which time.
# The cost is bounded in entries and in bytes, because an entry has the bodies of its results.


MOST_SETTLED = 256
MOST_BYTES = 2 << 20  # of results; after them no older entry is read
_FIRST = 2  # entries of the first page, because their size is not known yet
_LEASE_FIELDS = ("state", "born")


async def recent_leases(request_id: str, after: str = "") -> RecentLeases:
    """Returns the leases of a request that are held now, and those that were settled last.

    If `after` is the `log_id` of a settled lease, only later ones are returned with those held.
    Raises RequestNotFound, InvalidArgument.
    """
    if after and not is_place(after):
        raise InvalidArgument(
            f"place {after[:60]!r} is not valid: name the log_id of a settled lease"
        )
    row, held, time = await Batch(
        [
            hmget(request_id, *_LEASE_FIELDS),
            Command(b"ZRANGE", keys.leases(request_id), 0, MOST_PERMITS - 1, b"WITHSCORES"),
            Command(b"TIME"),
        ]
    )
    state, born = parse_fields(_LEASE_FIELDS, row)
    if state in {"", "abandoned"}:
        raise not_found(request_id)
    until = {name.decode(): int(float(score)) for name, score in _pairs(held)}
    holders = await read_holders(request_id, [name.encode() for name in until])
    leases = [
        HeldLease(int(one.k), one.worker, int(one.fence) // 1000, until[one.k], int(one.owed))
        for one in holders
    ]
    # Later entries are left out, because their leases are among those held.
    entries, is_whole = await _last_entries(request_id, after, time_ms(time))
    settled = [_settled(entry_id, fields, int(born or 0)) for entry_id, fields in entries]
    held_now = sorted(leases, key=lambda lease: lease.permit)
    return RecentLeases(held_now, settled[::-1], is_whole, time_ms(time))


def _pairs(row: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(row[::2], row[1::2], strict=True)


async def _last_entries(
    request_id: str, after: str, until_ms: int
) -> tuple[list[tuple[bytes, list[bytes]]], bool]:
    """Returns the last entries of `out`, newest first, and whether these are all."""
    out, end, count, size = keys.results(request_id), b"%d" % until_ms, _FIRST, 0
    start = f"({after}".encode() if after else b"-"
    found: list[tuple[bytes, list[bytes]]] = []
    while True:
        page = await Command(b"XREVRANGE", out, end, start, b"COUNT", count)
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


def _buckets(times_us: Iterable[int]) -> list[tuple[float, int]]:
    """Returns how many times are in each bucket of common/histogram.py, by its smallest in ms."""
    counts = Counter(bucket_of(max(0, one)) for one in times_us)
    return [(bounds_of(bucket)[0] / 1000, count) for bucket, count in sorted(counts.items())]


# ------------------------------------------------------------------ place
# Finds the next token of a request in the lanes, and the requests that are ahead of it.
#
# Reads the lanes as `fairlane status` does: counts, and the first MOST_READ tokens. A request may
# be at work without a token in a lane, so the tokens that workers took last are read, too.


MOST_WORKERS = 200  # workers whose requests are read


class InLane(NamedTuple):
    """A token that is not stale, and its lane."""

    lane: int
    token: Token


class Neighbours(NamedTuple):
    """The place of a request, the tokens ahead of it, and the requests of its lane behind it."""

    place: LanePlace
    lane: int
    ahead: list[InLane]
    behind: list[str]

    @property
    def ids(self) -> list[str]:
        """Returns the requests ahead, then those behind."""
        return list(dict.fromkeys([*(one.token.request_id for one in self.ahead), *self.behind]))


async def read_place(queue: str, request_id: str, priority: int) -> Neighbours:
    """Returns the place of a request that can start in the lanes of its queue.

    The lanes of a queue may be spread over shards, and workers take from each shard in turn. So
    the place is that in the shard with the fewest requests ahead.
    """
    spread = await read_shards(queue)
    waiting = await read_waiting(queue, spread.served)
    fresh = await _fresh_of(waiting)
    found = [
        one
        for shard in spread.served
        if (one := _in_shard(fresh.get(shard, []), request_id)) is not None
    ]
    if found:
        return min(found, key=lambda one: one.place.place)
    every = [one for tokens in fresh.values() for one in tokens]
    lanes = {place: count for place, count in waiting.counts.items() if place[1] != DELAYED}
    if sum(lanes.values()) <= MOST_READ:
        behind = _ids(one for one in every if one.lane == priority)
        return Neighbours(LanePlace({}, 0, is_lost=True), priority, [], behind)
    return _beyond(lanes, every, priority)


async def read_at_work(queue: str, workers: Sequence[str]) -> list[str]:
    """Returns the requests whose tokens these workers, at most MOST_WORKERS of them, took last."""
    asked = [Command(b"HGETALL", keys.taken(queue, name)) for name in workers[:MOST_WORKERS]]
    replies = await run_each(asked)
    texts = [text for reply in replies if isinstance(reply, list) for text in reply[1::2]]
    tokens = (parse(raw) for text in texts for raw in text.split())
    return list(dict.fromkeys(token.request_id for token in tokens if token is not None))


async def _fresh_of(waiting: Waiting) -> dict[int, list[InLane]]:
    """Returns the tokens of each shard in their order, without the stale ones."""
    placed = [
        (shard, InLane(priority, token))
        for (shard, priority), tokens in waiting.tokens.items()
        if priority != DELAYED
        for token in map(parse, tokens)
        if token is not None
    ]
    queued = await are_queued([one.token for _, one in placed])
    found: dict[int, list[InLane]] = {}
    for (shard, one), is_queued in zip(placed, queued, strict=True):
        if is_queued:
            found.setdefault(shard, []).append(one)
    return found


def _in_shard(tokens: Sequence[InLane], request_id: str) -> Neighbours | None:
    """Returns the place in one shard; None if the request has no token there."""
    own = [at for at, one in enumerate(tokens) if one.token.request_id == request_id]
    if not own:
        return None
    lane, ahead = tokens[own[0]].lane, list(tokens[: own[0]])
    behind = _ids(one for one in tokens[own[0] :] if one.lane == lane)
    behind.remove(request_id)
    return Neighbours(LanePlace(_by_lane(ahead), len(_ids(ahead))), lane, ahead, behind)


def _beyond(lanes: dict[tuple[int, int], int], read: Sequence[InLane], priority: int) -> Neighbours:
    """Returns the first possible place of a request if its tokens are behind all that were read."""
    ahead = [one for one in read if one.lane <= priority]
    counts = _by_lane(ahead)
    for (_, lane), count in lanes.items():
        if lane < priority:
            counts[lane] = max(counts.get(lane, 0), count)
    return Neighbours(LanePlace(counts, len(_ids(ahead)), is_exact=False), priority, ahead, [])


def _by_lane(tokens: Iterable[InLane]) -> dict[int, int]:
    return dict(sorted(Counter(one.lane for one in tokens).items()))


def _ids(tokens: Iterable[InLane]) -> list[str]:
    return list(dict.fromkeys(one.token.request_id for one in tokens))


# ------------------------------------------------------------------ estimate
# Estimates when a request starts and ends, from what its queue's workers measured.
#
# The workers serve the more urgent lanes first, and the requests of one lane in turn. The estimate
# assumes that nothing more urgent comes, and that all sub-requests take equally long.


MOST_REQUESTS = 500  # requests ahead of this one that are read
_FIELDS = ("limit", "priority", "total", "done", "dead", "fresh")
_SLOW_S, _SLOW = 1.0, 3.0  # a lease is slow after 3 usual calls, but not before 1 s
_SLICE_S = 0.02  # the least time that the work of one token takes
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
    """Another request: its limit, its sub-requests that are left, and its leases."""

    limit: int
    priority: int
    left: int
    held: int


class Capacity(NamedTuple):
    """The live workers: their concurrent calls, the calls that they finish in 1 s, their leases."""

    units: int = 0
    per_s: float = 0.0
    leases: int = 0

    @property
    def are_busy(self) -> bool:
        """Returns True if each unit had a lease at the last heartbeat."""
        return 0 < self.units <= self.leases


def capacity_of(workers: Sequence[WorkerState]) -> Capacity:
    """Returns the sum of the live workers. A worker without a measure counts as their mean."""
    alive = [one for one in workers if one.is_alive]
    units = sum(one.units or 0 for one in alive)
    measured = sum(one.units or 0 for one in alive if one.per_s)
    per_s = sum(one.per_s or 0.0 for one in alive)
    leases = sum(one.leases for one in alive)
    return Capacity(units, per_s * units / measured if measured else 0.0, leases)


async def read_rivals(ids: Sequence[str]) -> dict[str, Rival]:
    """Returns the first MOST_REQUESTS of these requests, without those that are gone."""
    names = ids[:MOST_REQUESTS]
    rows = await run_all([hmget(name, *_FIELDS) for name in names])
    found, busy = {}, []
    for name, row in zip(names, rows, strict=True):
        limit, priority, total, done, dead, fresh = map(_number, parse_fields(_FIELDS, row))
        left = max(0, total - done - dead)
        if limit:
            found[name] = Rival(limit, priority, left, 0)
            busy += [name] if left > fresh else []  # else it has no lease
    counts = await run_all([Command(b"ZCARD", keys.leases(name)) for name in busy])
    for name, count in zip(busy, counts, strict=True):
        found[name] = found[name]._replace(held=count)
    return found


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def urgent_at_work(rivals: dict[str, Rival], near: Neighbours) -> dict[str, Rival]:
    """Returns the more urgent requests that workers hold, and that have no token ahead."""
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
    """Returns when the request starts and ends. Estimate says what None means."""
    rates = [*facts.rates, *([queue_rate] if queue_rate is not None else [])]
    if what := _open_ended(facts, causes):
        return Estimate(why_not=f"{what} has no time to start")
    if capacity.per_s <= 0:
        why_not = "the workers have not finished a sub-request yet that was measured"
        return Estimate(units=capacity.units, why_not=why_not)
    if (oldest_s := _oldest_s(facts)) > max(_SLOW_S, _SLOW * capacity.units / capacity.per_s):
        shown = format_duration(round(oldest_s * 1000))
        why_not = f"a worker has held a part of it for {shown}, longer than calls took so far"
        return Estimate(0, None, capacity.per_s, capacity.units, why_not)
    opens_s = max([0, *((cause.until_ms or 0) - facts.now_ms for cause in causes)]) / 1000
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


def _open_ended(facts: RequestFacts, causes: Sequence[Cause]) -> str:
    """Returns the cause whose end is not known, as the subject of a sentence; "" if none is."""
    for cause in causes:
        if cause.kind in _OPEN_ENDED:
            return _OPEN_ENDED[cause.kind]
        if cause.kind == "queue" and not cause.until_ms:
            return "a queue that is paused until it is resumed"
        if cause.figures.get("stopped_by"):
            return "an order that is stopped until a person lets it go on"
    if facts.progress.given_back is not None and facts.retries:
        return _OPEN_ENDED["task"]
    return ""


def _oldest_s(facts: RequestFacts) -> float:
    """Returns the age of the oldest lease, whose fence is the time in us when it was acquired."""
    return max([0.0, *(facts.now_ms / 1e3 - int(one.fence) / 1e6 for one in facts.holders)])


def _wait_s(near: Neighbours, capacity: Capacity, rivals: dict[str, Rival]) -> float:
    """Returns how long it takes until a worker takes the request's next token.

    If more urgent requests may use every unit, their work comes first. Else a unit is left for
    this lane.
    """
    lanes = {one.token.request_id: one.lane for one in near.ahead}
    urgent = [name for name, lane in lanes.items() if lane < near.lane]
    known = [rivals[name] for name in urgent if name in rivals]
    share = len(urgent) / len(known) if known else 0.0  # unread requests count like these
    at_work = urgent_at_work(rivals, near).values()
    used = share * sum(min(one.limit, one.left) for one in known)
    used += sum(min(one.limit, one.left) for one in at_work)
    work = 0.0
    if used >= capacity.units:
        work = share * sum(one.left for one in known) + sum(one.left for one in at_work)
    same = sum(count for lane, count in near.place.ahead.items() if lane == near.lane)
    same += capacity.are_busy  # if all units are busy, a call must end first
    if not near.place.is_exact:
        work += max(0, near.place.place - 1 - len(near.ahead))  # a token has at least one call
    a_token_s = max(1 / capacity.per_s, _SLICE_S / max(1, capacity.units))
    return work / capacity.per_s + same * a_token_s


def _work_s(
    facts: RequestFacts,
    capacity: Capacity,
    near: Neighbours | None,
    rivals: dict[str, Rival],
    rates: Sequence[Rate],
) -> float:
    """Returns how long the request takes from its start, if its lane shares the workers."""
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


# ------------------------------------------------------------------ demand
# Counts how many leases could start now if there were workers: a signal for autoscaling.
#
# The requests themselves are counted, so stale and lost tokens do not matter. A walk reads all
# unfinished requests, 1,000 in a part. Each costs one HMGET, and one or two counts if it is at work
# or waits for a retry. Concurrent callers share one walk (live.py).


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
    "priority",
    "born",
    "keys",
)


OpenFields = tuple[str, dict[str, str], int]  # a request, its FIELDS, and its leases


class _Open(NamedTuple):
    """A request that may start more: its free permits, and its sub-requests not yet delivered.

    `limits` are those of its keys.
    """

    id: str
    room: int
    fresh: int
    has_retries: bool
    limits: Limits


async def demand(queue: str) -> Demand:
    """Returns how many more leases workers of a queue could take now."""
    home = await read_queue(queue)
    seen, scan, room = set[str](), "0", KeyRoom(queue)
    more = held = count = 0
    rows = list[WaitingRow]()
    while True:
        cursor, flat = await Command(b"ZSCAN", keys.active(queue), scan, b"COUNT", _PART)
        names = dict.fromkeys(name.decode("utf-8", "replace") for name in flat[::2])
        fresh = [name for name in names if name not in seen]  # a scan may return an entry twice
        seen.update(fresh)
        found = await _read_open(queue, fresh)
        more += await more_of(found, home.pause.now_ms, room)
        held += sum(one[2] for one in found)
        count += len(found)
        rows += map(_row, found)
        scan = cursor.decode()
        if scan == "0":
            break
    more = bounded(more, home.rate)
    is_paused, now_ms = home.pause.is_paused, home.pause.now_ms
    newest = endings_of(queue, await newest_ended(queue))
    workers = await workers_of(queue)
    backlog = backlog_of(rows, count, newest, workers, now_ms, is_paused=is_paused)
    more = 0 if is_paused else more
    return Demand(queue, backlog, more, held, count, is_paused, is_exact=True)


def _row(one: OpenFields) -> WaitingRow:
    numbers = (int(one[1][name] or 0) for name in ("priority", "fresh", "total", "born"))
    return WaitingRow(*numbers)


def bounded(more: int, rate: Rate | None) -> int:
    """Returns the part of a demand that the queue's rate lets start; None = no rate."""
    return more if rate is None else min(more, rate.width)


async def _read_open(queue: str, ids: Sequence[str]) -> list[OpenFields]:
    """Returns the requests of this queue among `ids`; one that is gone is left out."""
    rows = await run_all([hmget(name, *FIELDS) for name in ids])
    found = []
    for name, row in zip(ids, rows, strict=True):
        fields = dict(zip(FIELDS, parse_fields(FIELDS, row), strict=True))
        if fields["queue"] == queue and fields["limit"]:
            found.append((name, fields))
    busy = [name for name, fields in found if _left(fields) > int(fields["fresh"] or 0)]
    counts = await run_all([Command(b"ZCARD", keys.leases(name)) for name in busy])
    held = dict(zip(busy, counts, strict=True))
    return [(name, fields, held.get(name, 0)) for name, fields in found]


def _left(fields: dict[str, str]) -> int:
    """Returns how many sub-requests are neither done nor dead.

    If all of them wait for their first delivery, no lease has any, and no retry is due.
    """
    total, done, dead = (int(fields[name] or 0) for name in ("total", "done", "dead"))
    return total - done - dead


async def more_of(requests: Sequence[OpenFields], now_ms: int, keys_room: KeyRoom) -> int:
    """Returns how many more leases workers could take of these requests, as far as keys allow."""
    open_ones = [_open_lanes(*one, now_ms) for one in requests]
    known = [one for one in open_ones if one is not None]
    unsure = [one for one in known if one.has_retries and one.fresh < one.room]
    due = await run_all(
        [Command(b"ZCOUNT", keys.retries(one.id), b"-inf", now_ms) for one in unsure]
    )
    retries = {one.id: number for one, number in zip(unsure, due, strict=True)}
    await keys_room.read(one.limits for one in known)
    return sum(
        keys_room.take(one.limits, min(one.room, one.fresh + retries.get(one.id, 0)))
        for one in known
    )


def _open_lanes(name: str, fields: dict[str, str], held: int, now_ms: int) -> _Open | None:
    """Returns what a request may start by the rule of lua/v1/lib/permits.lua; None = nothing.

    If a request has a rate, it has only as many tokens as may start in a short time.
    """

    def number(field: str) -> int:
        return int(fields[field] or 0)

    is_overdue = 0 < number("deadline") <= now_ms
    if fields["state"] != "active" or is_overdue or number("opens") > now_ms:
        return None
    room = max(0, number("limit") - held)
    if fields["rates"]:
        room = min(room, int(fields["rates"].split()[0]))
    has_retries = _left(fields) > number("fresh")
    return _Open(name, room, number("fresh"), has_retries, limits_in(fields))
