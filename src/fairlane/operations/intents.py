"""Intents: the entries of `active` for requests that are about to be written.

The score of an intent is a whole number, the moment at which the auditor looks for the request. The
score of a request that exists has a fraction. So an auditor that gave up an intent cannot remove
the entry of a request that exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.operations.shards import Shards
from fairlane.operations.tokens import drop_active, reschedule_active, seen_to_exist
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Command, run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.operations.create import NewRequest
    from fairlane.options import Policy
    from fairlane.protocol.steps import Call


class Intent(NamedTuple):
    """The score in `active` of a request that is about to be written, and the score before it."""

    score: int
    before: str  # the score as Redis wrote it; "0" = none
    shards: str = ""  # where its tokens will go


async def intend(group: Sequence[NewRequest], above: int = 0) -> tuple[int, list[Intent]]:
    """Announces requests in `active`; returns the queue's bound (0 = none), and an intent for each.

    `above` is a score that the auditor gave up. At most 400 requests, each once. Raises
    InvalidArgument if a key has another limit, unless all of the requests are there already.
    """
    named = {f"{name}={limit}": None for new in group for name, limit in new.policy.limits}
    try:
        return await _intend(group, above, ",".join(named))
    except InvalidArgument:
        if not named or not await _are_there(group):
            raise
    return await _intend(group, above, "")


async def _intend(group: Sequence[NewRequest], above: int, named: str) -> tuple[int, list[Intent]]:
    policy, ids = group[0].policy, [new.id for new in group]
    names = (keys.active(policy.queue), keys.conf(policy.queue))
    grace = grace_ms(policy)
    reply = await scripts.intend(names, grace=grace, above=above, named=named, ids=ids)
    return reply.max_waiting, read_intents(ids, reply.shards, reply.scores)


async def _are_there(group: Sequence[NewRequest]) -> bool:
    """Returns True if this is the repeat of a submission, so that nothing is created."""
    asked = [Command(b"HGET", keys.request_hash(new.id), b"digest") for new in group]
    stored = await run_all(asked)
    return all(digest == new.digest.hex.encode() for new, digest in zip(group, stored, strict=True))


def grace_ms(policy: Policy) -> int:
    """Returns for how many ms the auditor leaves an intent alone.

    The auditor's first check must not be later than its first duty: the deadline, the end of the
    ageing, the start after other requests. Each check costs calls, so there is a least time.
    """
    grace = settings.INTENT_GRACE_MS
    least = grace // 5
    dues = [due for due in (policy.deadline_ms, policy.ageing_ms) if due]
    if policy.after:
        dues.append(least)
    return min(grace, max(min(dues, default=grace), least))


def read_intents(ids: Sequence[str], shards: bytes, scores: Sequence[Any]) -> list[Intent]:
    """Reads the reply of intend: the shards, then for each id its score and the former one."""
    spread = Shards.of(shards) if shards else None
    return [
        Intent(score, before.decode(), spread.turned(request_id) if spread else "")
        for request_id, score, before in zip(ids, scores[::2], scores[1::2], strict=True)
    ]


def withdraw(queue: str, request_id: str, intent: Intent) -> Call[Any]:
    """Takes an intent back: the entry gets its former score, or is removed if it had none.

    An entry that has another score by now stays: it is a newer intent, whose request may exist.
    """
    if intent.before != "0":
        return reschedule_active(queue, [request_id, intent.score, intent.before])
    return drop_active(queue, request_id, str(intent.score))


def restore(queue: str, request_id: str, intent: Intent, *, is_over: bool) -> Call[Any] | None:
    """Returns the step that undoes an intent for a request of this queue that existed already.

    The entry gets its former score, with the mark of a request that exists. None = the entry was
    missing, and the intent replaces it.
    """
    if is_over:
        return withdraw(queue, request_id, intent)
    if intent.before == "0":
        return None
    marked = seen_to_exist(int(float(intent.before)))
    return reschedule_active(queue, [request_id, intent.score, marked])
