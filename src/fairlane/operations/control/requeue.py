"""Runs dead sub-requests again: in their own request before its end, in a new one after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import RequestEnded, RequestExists
from fairlane.model import ENDED_STATES
from fairlane.operations.control import dead_letters
from fairlane.operations.control.dead_letters import ALL, choose, none_with
from fairlane.operations.control.request_state import not_found
from fairlane.operations.control.requeue_ended import requeue_ended
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.leases import new_op
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.model import DeadChoice
    from fairlane.operations.control.dead_letters import Chosen
    from fairlane.protocol.steps import Operation


def drop_dead(request_id: str, choice: DeadChoice = ALL) -> Operation[int]:
    """Deletes dead sub-requests with their bodies and errors; returns how many.

    Counts and results stay; a result no longer has the text of its error.

    Raises RequestNotFound, DeadNotFound, RequestExists (an interrupted requeue has claimed some).
    """
    chosen, missing = yield from choose(request_id, choice)
    if missing:
        raise none_with(request_id, choice, missing)
    dropped = held = 0
    size = yield from dead_letters.page_size(request_id)  # the script reads what it drops
    for last in range(len(chosen), 0, -size):
        ids = chosen.ids(max(0, last - size), last)
        call = library().drop_dead(keys.request_keys(request_id), id="", keep=0, ids=ids)
        reply = yield from call.run()
        dropped, held = dropped + reply.dropped, held + reply.held
    if held:
        raise RequestExists(
            f"{held:,} dead sub-requests of request {request_id} are being requeued and were not "
            "dropped: requeue any of its dead ones to finish that"
        )
    return dropped


def requeue_dead(request_id: str, choice: DeadChoice = ALL) -> Operation[tuple[str, int]]:
    """Makes dead sub-requests wait again with all attempts: (id of the request, how many).

    Before the end of the request they wait in the request itself. After it, they wait in a new
    request with the same policy and the old one as its parent; the old one keeps their dead
    results: see requeue_ended. Raises RequestNotFound, DeadNotFound, RequestEnded (its end is near:
    try later).
    """
    state = yield Command(b"HGET", keys.request_hash(request_id), b"state")
    if (state or b"").decode() in ENDED_STATES:
        return (yield from requeue_ended(request_id, choice))
    chosen, missing = yield from choose(request_id, choice)
    if missing:
        raise none_with(request_id, choice, missing)
    return (yield from _requeue(request_id, choice, chosen))


def _requeue(request_id: str, choice: DeadChoice, chosen: Chosen) -> Operation[tuple[str, int]]:
    """Requeues the chosen ones; chooses once more if the request has ended meanwhile."""
    moved: int = 0
    first: int = 0
    while first < len(chosen):
        ids = chosen.ids(first, first + dead_letters.CALL)
        call = library().requeue_dead(keys.request_keys(request_id), op=new_op(), ids=ids)
        reply = yield from call.run()
        stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
        if reply.is_gone or stored is None:
            raise not_found(request_id)
        if reply.is_ending:
            raise RequestEnded(
                f"request {request_id} is being cancelled or past its deadline: "
                "requeue its dead sub-requests when it has ended"
            )
        if calls := follow_up(stored.decode(), (request_id, reply)):
            yield Batch(calls)
        if reply.is_ended:
            # More may have died before the end, and some of the chosen ones wait again.
            new_id, count = yield from requeue_ended(request_id, choice, may_miss=True)
            return new_id, moved + count
        first += reply.looked
        moved += reply.moved
    return request_id, moved
