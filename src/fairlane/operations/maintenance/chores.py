"""What the leading worker does for requests that age, or wait for others.

Both depend on the time or on other slots, so no script of the request alone can do them. A chore
may be done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import FairlaneError
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_each_or_error
from fairlane.operations.lease.follow_up import follow_up
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch

if TYPE_CHECKING:
    from fairlane.protocol.steps import Call, Operation

_FIELDS = ("state", "dead", "total", "was")  # "was": how a deleted one failed


def do_chore(queue: str, request_id: str, chore: str) -> Operation[None]:
    """Does what a glance has reported: hastens a request, or starts it after others."""
    if chore == "aged":
        yield from _run(queue, request_id, library().hasten(keys.request_keys(request_id)))
        return
    mode, _, others = chore.partition(":")
    refusal = yield from _refusal(mode, others.split(","))
    if refusal is None:
        return
    names = keys.request_keys(request_id)
    call = library().cancel(names, reason=refusal) if refusal else library().open_gate(names)
    yield from _run(queue, request_id, call)


def _refusal(mode: str, ids: list[str]) -> Operation[str | None]:
    """Returns why a request may never start after these, "" if it may now, None if not yet.

    A request that is no longer kept has ended; with which result is not known, so it counts as
    done. The marker of a deleted one names its failure.
    """
    rows = yield from run_each_or_error([hmget(one, *_FIELDS) for one in ids])
    refusal = ""
    for one, row in zip(ids, rows, strict=True):
        if isinstance(row, FairlaneError):
            return None
        state, dead, total, was = parse_fields(_FIELDS, row)
        if state and state not in ENDED_STATES and state != "abandoned":
            return None
        if mode == "done" and "cancelled" in {state, was}:
            refusal = refusal or f"after: request {one} was cancelled"
        elif mode == "done" and (was or int(dead or 0)):
            refusal = refusal or f"after: request {one} has {was or f'{dead} of {total} dead'}"
    return refusal


def _run(queue: str, request_id: str, call: Call) -> Operation[None]:
    reply = yield from call.run()
    if calls := follow_up(queue, (request_id, reply)):
        yield Batch(calls)
