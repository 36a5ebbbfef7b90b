"""Why one request waits: its causes, its place in the lanes, and an estimate.

It only reads. The cost is bounded: the request, at most MOST_READ tokens, at most MOST_REQUESTS
other requests and 1,000 workers.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.fingerprint import read_failure
from fairlane.common.text import join_names, plural, when
from fairlane.errors import InvalidArgument, not_found
from fairlane.operations.after import DONE, circle_text
from fairlane.operations.call_words import with_calls
from fairlane.operations.estimate import (
    Capacity,
    Neighbours,
    Rival,
    capacity_of,
    estimate,
    read_at_work,
    read_place,
    read_queue,
    read_request,
    read_rivals,
    urgent_at_work,
)
from fairlane.operations.find import list_workers
from fairlane.operations.flow_hand_over import Feed
from fairlane.operations.long_calls import long_calls_of, words
from fairlane.operations.pause import remedy
from fairlane.operations.rates import until_more
from fairlane.operations.starved import starved
from fairlane.operations.take import TAKER
from fairlane.operations.workers import no_worker
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command
from fairlane.records import Cause, Estimate, KeyState, WhyWaiting

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from fairlane.call_records import LongCall
    from fairlane.operations.estimate import QueueFacts, RequestFacts
    from fairlane.records import LanePlace


# ------------------------------------------------------------------ blockers
# Finds why no work of a queue can start now, by request. Only reads; the cost is bounded.


_MOST = 20  # requests read


class WaitingRequest(NamedTuple):
    """An unfinished request and what it waits for; if `kind` and `due_ms` are equal, so is that."""

    request_id: str
    kind: str
    why: str  # for people
    due_ms: int = 0


async def waiting(queue: str, most: int = _MOST) -> tuple[list[WaitingRequest], int]:
    """Returns what at most `most` unfinished requests wait for, and how many more there are.

    Raises FairlaneError if they can't be read.
    """
    names, count = await Batch(
        [
            Command(b"ZRANGE", keys.active(queue), 0, most - 1),
            Command(b"ZCARD", keys.active(queue)),
        ]
    )
    if not names:
        return [], 0
    found, home = [], await read_queue(queue)
    for name in names:
        request_id = name.decode("utf-8", "replace")
        facts = await read_request(request_id)
        causes = causes_of(facts, home) if facts is not None else []
        if causes:
            first = causes[0]
            found.append(WaitingRequest(request_id, first.kind, first.text, first.until_ms or 0))
    return found, max(0, count - len(names))


# ------------------------------------------------------------------ causes
# The one diagnosis: which causes hold up a request, given what was read of it and its queue.
#
# `why`, `doctor` and the report of an idle worker use it. It reads nothing.


GATED = ("after", "delay", "handler", "rate")  # the kinds of a request whose gate is closed
_MOST_LONG = 3  # calls that run unusually long, of one request
_ERROR_MOST = 200  # characters of an error


def causes_of(
    facts: RequestFacts,
    queue: QueueFacts,
    place: LanePlace | None = None,
    capacity: Capacity | None = None,
) -> list[Cause]:
    """Returns the causes, the one that matters most first; none if the request has ended.

    `place` is where its next token is, if the lanes were read, `capacity` what the workers are.
    """
    if facts.progress.ended:
        return []
    own = own_cause(facts)
    found = [own] if own is not None else []
    found += (held_up := [*_of_queue(queue)])
    if own is None:
        is_served = not held_up
        found.append(
            in_keys(facts.key, facts.key_place)
            if facts.key is not None
            else _in_lanes(place, capacity or Capacity(), is_served=is_served)
        )
    return found


def in_keys(key: KeyState, place: int) -> Cause:
    """Returns the cause that a request waits for a key, at this place in its line."""
    if key.is_order:
        return _in_order(key, place)
    noun = "request" if len(key.holders) == 1 else "requests"
    by = f", by {noun} {join_names(list(key.holders))}" if key.holders else ""
    ahead = f"; {place - 1:,} in its line are ahead" if place > 1 else ""
    verb = "is" if key.held == 1 else "are"
    are = "is" if key.called == 1 else "are"
    called = f", and {key.called:,} {are} called or kept" if key.called else ""
    text = f"waits for key {key.name}: {key.held:,} of {key.limit:,} {verb} held{by}{called}{ahead}"
    figures = {
        "key": key.name,
        "held": key.held,
        "called": key.called,
        "limit": key.limit,
        "place": place,
        "holders": list(key.holders),
    }
    return Cause("key", text, figures=figures)


def _in_order(key: KeyState, place: int) -> Cause:
    if key.stopped_by:
        text = (
            f"waits in the order of key {key.name}, which request {key.stopped_by} has stopped by "
            f"its dead sub-requests: `fairlane dead requeue {key.stopped_by} --all` runs them "
            f"again, `fairlane key resume {key.name}` leaves them and lets the others go on"
        )
    else:
        by = f": request {join_names(list(key.holders))} has it" if key.holders else ""
        verb = "request is" if place == 2 else "requests are"  # noqa: PLR2004
        text = f"waits for its turn of key {key.name}{by}; {place - 1:,} {verb} ahead in all"
    figures = {"key": key.name, "place": place, "holders": list(key.holders)}
    return Cause("key", text, figures=figures | {"stopped_by": key.stopped_by})


# ------------------------------------------------------------------ the request


def own_cause(facts: RequestFacts) -> Cause | None:
    """Returns the cause in the request itself; None if it waits only for a worker."""
    return next(filter(None, (look(facts) for look in _OWN)), None)


def _state(facts: RequestFacts) -> Cause | None:
    progress = facts.progress
    if progress.state == "active":
        return None
    if progress.state == "paused":
        return Cause("paused", f"paused: fairlane resume {progress.id}")
    held = _held_by(facts) if progress.held else "maintenance ends it within seconds"
    return Cause(progress.state, f"{progress.state}: {held}", figures=_figures(facts))


def _deadline(facts: RequestFacts) -> Cause | None:
    progress = facts.progress
    if progress.deadline_ms is None or progress.deadline_ms > facts.now_ms:
        return None
    passed = when(progress.deadline_ms, facts.now_ms)
    return Cause("expiring", f"its deadline passed at {passed}: nothing of it starts any more")


def _after(facts: RequestFacts) -> Cause | None:
    if not facts.after:
        return None
    open_ones = [one for one in facts.others if not one.has_ended]
    figures = {
        "after": {one.id: one.state or None for one in facts.others},
        "more": facts.more_others,
    }
    if facts.circle:
        figures["circle"] = list(facts.circle)
        text = f"waits in a circle: {circle_text(facts.circle)}; fairlane cancel one of them"
        return Cause("after", text, figures=figures)
    if not open_ones and not facts.more_others:
        does = "starts or cancels" if facts.after == DONE else "starts"
        text = f"the requests before it have ended: the leading worker {does} it within seconds"
        return Cause("after", text, figures=figures)
    shown = [f"{one.id} ({one.state}, {one.settled:,} of {one.total:,})" for one in open_ones]
    more = f" and {facts.more_others:,} more" if facts.more_others else ""
    verb = "done" if facts.after == DONE else "ended"
    text = f"starts after other requests are {verb}: {join_names(shown)}{more}"
    return Cause("after", text, figures=figures)


def _gate(facts: RequestFacts) -> Cause | None:
    progress = facts.progress
    if facts.is_gate_open or not (facts.fresh or facts.retries):
        return None
    if progress.is_rate_limited:
        rates = list(progress.rates)
        until_ms = max(progress.opens_ms or 0, facts.rates_open_ms)
        text = f"its rate {' and '.join(rates)} allows more at {when(until_ms, facts.now_ms)}"
        return Cause("rate", text, until_ms or None, {"rates": rates})
    opens = when(progress.opens_ms or 0, facts.now_ms)
    if facts.fresh < progress.total:  # a delay is over before anything is delivered
        text = f"a handler asked for a pause of the whole request: it goes on at {opens}"
        return Cause("handler", text, progress.opens_ms)
    return Cause("delay", f"starts at {opens}", progress.opens_ms)


def _limit(facts: RequestFacts) -> Cause | None:
    if facts.progress.held < facts.progress.limit:
        return None
    return Cause("limit", _held_by(facts), figures=_figures(facts))


def _retry(facts: RequestFacts) -> Cause | None:
    if facts.ready or not facts.retries:
        return None
    progress = facts.progress
    due = when(facts.next_due_ms, facts.now_ms)
    are = "all that waits of it is" if facts.retries > 1 else "the sub-request that waits is"
    figures = {"retries": facts.retries, **_figures(facts)}
    note = progress.given_back or progress.last_failure
    error = "" if note is None else read_failure(note.error).headline[:_ERROR_MOST]
    if progress.given_back is not None:
        count = plural(facts.retries, "sub-request")
        text = f"workers gave back {count} until {due}: {error}"
        return Cause("task", text, facts.next_due_ms or None, {**figures, "reason": error})
    text = f"{are} to be tried again at {due}" + (f", after {error}" if error else "")
    return Cause("retry", text, facts.next_due_ms or None, {**figures, "error": error or None})


def _held(facts: RequestFacts) -> Cause | None:
    if facts.ready or not facts.progress.held:
        return None
    return Cause("held", f"nothing else of it waits: {_held_by(facts)}", figures=_figures(facts))


def _open(facts: RequestFacts) -> Cause | None:
    if facts.ready or not facts.progress.is_open:
        return None
    last_ms = max(facts.last_chunk_ms, facts.progress.submitted_ms)
    text = "open: its producer is still sending, or gone"
    with suppress(InvalidArgument):  # a damaged feed, which doctor reports
        if (feed := Feed.parse(facts.feed)) is not None:
            requests = "request" if len(feed.sources) == 1 else "requests"
            text = f"open: it is fed by {requests} {join_names(list(feed.sources))}"
    return Cause("open", text, figures={"last_ms": last_ms})


_OWN: tuple[Callable[[RequestFacts], Cause | None], ...] = (
    *(_state, _deadline, _after, _gate, _limit, _retry, _held, _open),
)


def _held_by(facts: RequestFacts) -> str:
    """Returns `3 of 3 permits are held, by w1 (2) and w2`."""
    progress = facts.progress
    verb = "is" if progress.held == 1 else "are"
    counts = held_by_worker(facts)
    names = [f"{name} ({count:,})" if count > 1 else name for name, count in counts.items()]
    by = f" by {join_names(names)}" if names else ""
    return f"{progress.held:,} of {plural(progress.limit, 'permit')} {verb} held{by}"


def _figures(facts: RequestFacts) -> dict[str, object]:
    progress = facts.progress
    return {"held": progress.held, "limit": progress.limit, "workers": held_by_worker(facts)}


def held_by_worker(facts: RequestFacts) -> dict[str, int]:
    """Returns worker -> how many permits it holds, the one with the most first."""
    return dict(Counter(one.worker for one in facts.holders).most_common())


def late_holders(facts: RequestFacts, alive: Collection[str]) -> list[Cause]:
    """Returns the cause that workers without a recent heartbeat hold permits, if they do.

    A program that takes has no heartbeat: its leases end at their own deadlines.
    """
    late = {
        name: count
        for name, count in held_by_worker(facts).items()
        if name not in alive and not name.startswith(TAKER)
    }
    if not late:
        return []
    has = "has" if len(late) == 1 else "have"
    text = f"{join_names(list(late))} {has} no recent heartbeat: what is held there is taken back"
    return [Cause("late", text, figures={"workers": late})]


def in_long_call(call: LongCall, now_ms: int) -> Cause:
    """Returns the cause that a call runs unusually long."""
    figures = {
        name: getattr(call, name)
        for name in ("index", "task", "worker", "since_ms", "ran_ms", "usual_ms")
    }
    return Cause("long_call", f"{words(call, now_ms)}: {call.remedy}", figures=figures)


# ------------------------------------------------------------------ the queue


def _of_queue(queue: QueueFacts) -> Iterable[Cause]:
    if queue.pause.is_paused:
        yield Cause("queue", remedy(queue.name, queue.pause), queue.pause.until_ms)
    if queue.rate is not None and queue.opens_ms:
        text = until_more(queue.name, queue.rate, queue.opens_ms, queue.pause.now_ms)
        yield Cause("queue_rate", text, queue.opens_ms, {"rate": queue.rate.words})
    if not queue.workers:
        yield Cause("workers", no_worker(queue.name))


def _in_lanes(place: LanePlace | None, capacity: Capacity, *, is_served: bool) -> Cause:
    """Returns the place as a cause. `is_served`: the workers take from the queue now."""
    if place is None:
        return Cause("token", "its next token is on its way")
    if place.is_lost:
        text = "its token is in no lane: a worker is taking it, or else it is minted again soon"
        return Cause("token", text)
    busy = _busy(place, capacity) if is_served else ""
    figures = {
        "lanes": place.ahead,
        "requests": place.requests,
        "units": capacity.units,
        "leases": capacity.leases,
        "urgent": place.urgent,
        "urgent_held": place.urgent_held,
    }
    if not place.ahead:
        return Cause("token", f"no token is ahead of it{busy}", figures=figures)
    least = "" if place.is_exact else "at least "
    lanes = [f"{count:,} in lane {lane}" for lane, count in place.ahead.items()]
    verb = "is" if place.place == 2 else "are"  # noqa: PLR2004  the first one behind one token
    text = (
        f"{least}{plural(place.place - 1, 'token')} of {plural(place.requests, 'request')} {verb} "
        f"ahead of it: {join_names(lanes)}{busy}"
    )
    return Cause("lanes", text, figures=figures)


def _busy(place: LanePlace, capacity: Capacity) -> str:
    """Returns what the workers do instead."""
    if not capacity.are_busy:
        return ": the next free worker takes it" if not place.ahead else ""
    units = "; the only unit of the workers is busy"
    if capacity.units > 1:
        units = f"; all {capacity.units:,} units of the workers are busy"
    if not place.urgent:
        return units
    requests = plural(place.urgent, "more urgent request")
    return f"{units}, {requests} at work with {plural(place.urgent_held, 'permit')}"


async def why(request_id: str) -> WhyWaiting:
    """Returns what holds up a request, and when it may start. Raises RequestNotFound."""
    facts = await read_request(request_id)
    if facts is None:
        raise not_found(request_id)
    (progress,) = await with_calls([facts.progress])
    if progress.ended:
        return WhyWaiting(progress, [], {}, None, Estimate(why_not="it has ended"), facts.now_ms)
    queue = await read_queue(progress.queue)
    page = await list_workers(progress.queue)
    capacity = capacity_of(page.workers)
    alive = [one.id for one in page.workers if one.is_alive]
    near: Neighbours | None = None
    rivals: dict[str, Rival] = {}
    if progress.state == "active" and facts.ready:
        near = await read_place(progress.queue, request_id, progress.priority)
        at_work = await read_at_work(progress.queue, alive)
        others = [name for name in (*near.ids, *at_work) if name != request_id]
        rivals = await read_rivals(list(dict.fromkeys(others)))
    place = _place(near, rivals) if near is not None and facts.can_start else None
    causes = causes_of(facts, queue, place, capacity)
    if not page.more:
        causes[1:1] = late_holders(facts, alive)
    none_left = await starved(progress.queue, page)
    if none_left is not None and request_id in none_left.requests:
        figures = {"units": none_left.units, "requests": list(none_left.requests)}
        text = f"{none_left.text}: {none_left.remedy}"
        causes.insert(0, Cause("starved", text, figures=figures))
    long = await long_calls_of(progress.queue, page.workers, request_id)
    causes += [in_long_call(one, facts.now_ms) for one in long[:_MOST_LONG]]
    found = estimate(facts, causes, capacity, near, rivals, queue.rate)
    return WhyWaiting(progress, causes, held_by_worker(facts), place, found, facts.now_ms)


def _place(near: Neighbours, rivals: dict[str, Rival]) -> LanePlace:
    """Returns the place with the more urgent requests at work."""
    urgent = urgent_at_work(rivals, near).values()
    held = sum(one.held for one in urgent)
    return replace(near.place, urgent=len(urgent), urgent_held=held)
