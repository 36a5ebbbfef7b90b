"""Changes of a request that runs: pause, resume, cancel, another limit, priority or deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import InvalidArgument, RequestEnded
from fairlane.operations.control.request_state import not_found
from fairlane.operations.create.intents import seen_to_exist
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.tokens import count_stop, reschedule_active
from fairlane.options import check_deadline, check_limit, check_priority, check_share
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Arg, Call, Operation


def pause(request_id: str) -> Operation[str]:
    """Starts no more sub-requests until the request is resumed; returns the state now in force.

    The state is `paused`; `cancelling` or `expiring` if the end of the request is near anyway;
    or `active` if its deadline has just passed.
    Raises RequestNotFound, RequestEnded.
    """
    reply = yield from _change(request_id, library().pause(keys.request_keys(request_id)), "paused")
    return str(reply.state.decode())


def resume(request_id: str) -> Operation[str]:
    """Continues a paused request; returns the state now in force: see pause.

    Raises RequestNotFound, RequestEnded.
    """
    call = library().resume(keys.request_keys(request_id))
    reply = yield from _change(request_id, call, "resumed")
    return str(reply.state.decode())


def set_limit(request_id: str, limit: int) -> Operation[None]:
    """Sets how many workers may hold slices from now on; leases above that are finished.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    names = keys.request_keys(request_id)
    call = library().set_limit(names, limit=check_limit(limit))
    yield from _change(request_id, call, "given another limit")


def set_priority(request_id: str, priority: int) -> Operation[None]:
    """Moves the tokens of a request to the lane `priority`; slices that are held are finished.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    names = keys.request_keys(request_id)
    call = library().set_priority(names, priority=check_priority(priority))
    yield from _change(request_id, call, "given another priority")


def set_share(request_id: str, share: int) -> Operation[None]:
    """Gives the tenant of a request another share of the workers' time, 1 to 999.

    Raises InvalidArgument, also if it names no tenant, RequestNotFound, RequestEnded.
    """
    call = library().set_share(keys.request_keys(request_id), share=check_share(share))
    if (yield from _change(request_id, call, "given another share")).is_plain:
        raise no_tenant(request_id)


def no_tenant(request_id: str) -> InvalidArgument:
    """Returns the error of a share for a request without a tenant."""
    return InvalidArgument(
        f"request {request_id} names no tenant, so it has no share: submit it with a tenant"
    )


def set_deadline(request_id: str, deadline_ms: int) -> Operation[None]:
    """Starts no sub-request later than `deadline_ms` from now; 0 = there is no deadline any more.

    Raises InvalidArgument, RequestNotFound, RequestEnded (also if its end is near).
    """
    names = keys.request_keys(request_id)
    call = library().set_deadline(names, deadline_ms=check_deadline(deadline_ms))
    reply = yield from _change(request_id, call, "given another deadline")
    if reply.is_ending:
        raise RequestEnded(
            f"request {request_id} is being cancelled or past its deadline: "
            "it cannot be given another deadline"
        )
    stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    yield from look_by((stored or b"").decode(), [request_id], deadline_ms)


def look_by(queue: str, ids: Sequence[str], deadline_ms: int) -> Operation[None]:
    """Lets maintenance look at requests when their new deadline passes, if not earlier anyway.

    An entry of `active` without a fraction is an intent, and is looked at within seconds.
    """
    if not deadline_ms:
        return
    active = keys.active(queue)
    *scores, time = yield Batch(
        [*(Command(b"ZSCORE", active, request_id) for request_id in ids), Command(b"TIME")]
    )
    due = time_ms(time) + deadline_ms
    rows: list[Arg] = []
    for request_id, score in zip(ids, scores, strict=True):
        if score is not None and float(score) % 1 and float(score) > due:
            rows += [request_id, score, seen_to_exist(due)]
    if rows:
        yield reschedule_active(queue, rows)


def cancel(request_id: str, reason: str, *, queue: str | None = None) -> Operation[bool]:
    """Cancels a request; True if it has ended, False while slices are held. RequestNotFound.

    `queue` is where its tokens go if a producer creates the request only after its hash was read.
    """
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason {reason!r} is not valid: words are expected")
    names = keys.request_keys(request_id)
    stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    reply = yield from library().cancel(names, reason=reason).run()
    if reply.is_gone:
        raise not_found(request_id)
    home = stored.decode() if stored else (queue or "")
    if calls := follow_up(home, (request_id, reply)):
        yield Batch(calls)
    if not reply.is_ended:
        yield from count_stop(home)
    return reply.is_ended


def _change(request_id: str, call: Call, change: str) -> Operation[Reply]:
    """Runs the script and follows up its reply. `change` names the change in a RequestEnded."""
    reply = yield from call.run()
    stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    if reply.is_gone or stored is None:
        raise not_found(request_id)
    if calls := follow_up(stored.decode(), (request_id, reply)):
        yield Batch(calls)
    if reply.is_ended:
        state = reply.summary.state.decode()
        raise RequestEnded(f"request {request_id} has ended ({state}): it cannot be {change}")
    return reply
