"""Why one request waits: its causes, its place in the lanes, and an estimate.

It only reads. The cost is bounded: the request, at most MOST_READ tokens, at most MOST_REQUESTS
other requests and 1,000 workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.found import Estimate, WhyWaiting
from fairlane.operations.blockers.causes import causes_of, held_by_worker, late_holders
from fairlane.operations.blockers.estimate import (
    Rival,
    capacity_of,
    estimate,
    read_rivals,
    urgent_at_work,
)
from fairlane.operations.blockers.facts import read_queue, read_request
from fairlane.operations.blockers.place import Neighbours, read_at_work, read_place
from fairlane.operations.control.request_state import not_found
from fairlane.operations.find.workers import list_workers

if TYPE_CHECKING:
    from fairlane.found import LanePlace
    from fairlane.protocol.steps import Operation


def why(request_id: str) -> Operation[WhyWaiting]:
    """Returns what holds up a request, and when it may start. Raises RequestNotFound."""
    facts = yield from read_request(request_id)
    if facts is None:
        raise not_found(request_id)
    progress = facts.progress
    if progress.ended:
        return WhyWaiting(progress, [], {}, None, Estimate(why_not="it has ended"), facts.now_ms)
    queue = yield from read_queue(progress.queue)
    page = yield from list_workers(progress.queue)
    capacity = capacity_of(page.workers)
    alive = [one.id for one in page.workers if one.is_alive]
    near: Neighbours | None = None
    rivals: dict[str, Rival] = {}
    if progress.state == "active" and facts.ready:
        near = yield from read_place(progress.queue, request_id, progress.priority)
        at_work = yield from read_at_work(progress.queue, alive)
        others = [name for name in (*near.ids, *at_work) if name != request_id]
        rivals = yield from read_rivals(list(dict.fromkeys(others)))
    place = _place(near, rivals) if near is not None and facts.can_start else None
    causes = causes_of(facts, queue, place, capacity)
    if not page.more:
        causes[1:1] = late_holders(facts, alive)
    found = estimate(facts, causes, capacity, near, rivals, queue.rate)
    return WhyWaiting(progress, causes, held_by_worker(facts), place, found, facts.now_ms)


def _place(near: Neighbours, rivals: dict[str, Rival]) -> LanePlace:
    """Returns the place with the more urgent requests at work."""
    urgent = urgent_at_work(rivals, near).values()
    held = sum(one.held for one in urgent)
    return near.place._replace(urgent=len(urgent), urgent_held=held)
