"""How a producer takes back what it could not complete: discard [R], drop [D]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.operations.lease.tokens import count_stop, drop_active, retire
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Command, Operation

if TYPE_CHECKING:
    from typing import Any

    from fairlane.operations.create.new_request import NewRequest


def discard(own: NewRequest, reason: str) -> Operation[None]:
    """Takes an open request back, as far as this submission wrote it: its keys and its tokens.

    It was never complete, so it is not logged. While a slice is held, it is cancelled instead, and
    ends with that slice. Another producer's chunks stay, and so does a life of the id that another
    producer began.
    """
    queue = own.policy.queue
    # Read first: after the discard the entry may be a newer intent of another producer.
    score = (yield Command(b"ZSCORE", keys.active(queue), own.id)) or b"0"
    call = library().discard(
        own.names,
        born=own.born,
        chain=own.digest.hex,
        before=own.digest.before,
        reason=reason,
        # An auditor may have moved the entry back from an intent: at most by this.
        seen=int(float(score)) + 2 * settings.INTENT_GRACE_MS,
        ttl=settings.MARKER_MS,
    )
    reply = yield from call.run()
    if reply.is_ended:
        yield retire(queue, own.id, reply.summary)
    elif reply.is_ok or reply.is_held:
        yield from _remove_tokens(own, reply.queued)
        if reply.is_held:
            yield from count_stop(queue)
    if (reply.is_ok or reply.is_gone) and score != b"0":
        yield drop_active(queue, own.id, score.decode())


def _remove_tokens(own: NewRequest, tokens: list[Any]) -> Operation[None]:
    """Takes tokens out of their lanes; one that is left would cost a worker one call."""
    for lane, permit in zip(tokens[::3], tokens[1::3], strict=True):
        token = f"{own.id}#{permit.decode()}"
        yield Command(b"LREM", keys.lane(own.policy.queue, int(lane)), 1, token)
