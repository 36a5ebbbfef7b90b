"""Deletes ended requests: first their endings are logged, then their keys go.

A marker stays for ten minutes. It refuses late copies of the producer's calls, and it lets a new
life of the id begin later than the deleted one, so that the log holds the endings of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import FairlaneError, RequestNotEnded
from fairlane.operations.batching import call_each, run_all
from fairlane.operations.lease.tokens import retire_all
from fairlane.operations.maintenance.registry import glances
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Call, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.operations.many.selection import Chosen
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

Outcome = FairlaneError | bool  # True = deleted, False = gone, or another life has the id


def delete_each(queue: str, chosen: Sequence[Chosen]) -> Operation[dict[str, Outcome]]:
    """Deletes the chosen lives of one queue, a batch of them; returns what became of each."""
    replies = yield from glances("", [one.id for one in chosen])
    found = dict[str, Outcome]()
    ended: dict[Chosen, Reply] = {}
    for one in chosen:
        reply = replies[one.id]
        if isinstance(reply, FairlaneError):
            found[one.id] = reply
        elif reply.is_ended and reply.summary.born == one.born:
            ended[one] = reply
        elif reply.is_ok:
            found[one.id] = _not_ended(one.id)
        else:
            found[one.id] = False
    yield from run_all(retire_all(queue, [(one.id, it.summary) for one, it in ended.items()]))
    _, time = yield Batch([Command(b"EXISTS", keys.active(queue)), Command(b"TIME")])
    calls = [delete(one, time_ms(time) + 2 * settings.INTENT_GRACE_MS) for one in ended]
    for one, answer in zip(ended, (yield from call_each(calls)), strict=True):
        found[one.id] = _outcome(one.id, answer)
    return found


def delete(one: Chosen, seen: int) -> Call:
    """Returns the call that deletes one life; intents up to the score `seen` are given up."""
    names = (
        *(*keys.request_keys(one.id), keys.unique_ids(one.id)),
        *(keys.owner(one.id), keys.of_flow(one.id), keys.fed(one.id)),
    )
    return library().delete(names, born=one.born, seen=seen, ttl=settings.LEAST_TOMBSTONE_MS)


def _outcome(request_id: str, reply: Reply | FairlaneError) -> Outcome:
    if isinstance(reply, FairlaneError):
        return reply
    if reply.is_claimed:
        return RequestNotEnded(
            f"request {request_id} stays, because its dead sub-requests are being requeued: "
            "requeue any of them to finish that"
        )
    if reply.is_alive:  # a failover took back its end
        return _not_ended(request_id)
    return not reply.is_other  # gone: the first try, whose reply was lost, has deleted it


def _not_ended(request_id: str) -> RequestNotEnded:
    return RequestNotEnded(
        f"request {request_id} has not ended: cancel it first, and wait until what is held is "
        "returned"
    )
