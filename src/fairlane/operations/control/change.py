"""Changes of a request that runs: pause, resume, cancel, another limit, another priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import InvalidArgument, RequestEnded
from fairlane.model import check_limit, check_priority
from fairlane.operations.control.request_state import not_found
from fairlane.operations.lease.tokens import count_stop, insert, retire
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.steps import Call, Operation


def pause(request_id: str) -> Operation[str]:
    """Nothing more of it starts until it is resumed; returns the state now in force.

    That is `paused`, or `cancelling` or `expiring` when it is on its way to its end already, or
    `active` when its deadline has just passed.
    Raises RequestNotFound, RequestEnded.
    """
    reply = yield from _change(request_id, library().pause(keys.request_keys(request_id)), "paused")
    return str(reply[1].decode())


def resume(request_id: str) -> Operation[str]:
    """A paused request goes on; returns the state now in force: see pause.

    Raises RequestNotFound, RequestEnded.
    """
    call = library().resume(keys.request_keys(request_id))
    reply = yield from _change(request_id, call, "resumed")
    return str(reply[1].decode())


def set_limit(request_id: str, limit: int) -> Operation[None]:
    """At most `limit` workers at once from now on; what is held above it drains.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    names = keys.request_keys(request_id)
    call = library().set_limit(names, limit=check_limit(limit))
    yield from _change(request_id, call, "given another limit")


def set_priority(request_id: str, priority: int) -> Operation[None]:
    """Its tokens go to the lane `priority`; what is held ends as it is.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    names = keys.request_keys(request_id)
    call = library().set_priority(names, priority=check_priority(priority))
    yield from _change(request_id, call, "given another priority")


def cancel(request_id: str, reason: str, *, queue: str | None = None) -> Operation[bool]:
    """Stops a request; True when it has ended, False while slices are held. RequestNotFound.

    `queue` is where its tokens go if the request is written only after its hash was read.
    """
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason {reason!r} is not valid: words are expected")
    names = keys.request_keys(request_id)
    stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    reply = yield library().cancel(names, reason=reason)
    if reply[0] == b"gone":
        raise not_found(request_id)
    home = stored.decode() if stored else (queue or "")
    if reply[0] == b"ended":
        yield retire(home, request_id, reply[1])
        return True
    calls = insert(home, request_id, reply[-1])
    if calls:
        yield Batch(calls)
    yield from count_stop(home)
    return False


def _change(request_id: str, call: Call, what: str) -> Operation[list[Any]]:
    """Runs the script and dispatches the tokens at the end of its reply."""
    reply: list[Any] = yield call
    stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
    if reply[0] == b"gone" or stored is None:
        raise not_found(request_id)
    queue = stored.decode()
    if reply[0] == b"ended":
        yield retire(queue, request_id, reply[1])
        raise RequestEnded(
            f"request {request_id} has ended ({reply[1][0].decode()}): it cannot be {what}"
        )
    calls = insert(queue, request_id, reply[-1])
    if calls:
        yield Batch(calls)
    return reply
