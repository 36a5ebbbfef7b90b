"""Intents: the entries of `active` for requests that are about to be written.

The score of an intent is a whole number, the moment at which the auditor looks for the request. The
score of a request that exists has a fraction. So an auditor that gave up an intent cannot remove
the entry of a request that exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.operations.lease.shards import Shards
from fairlane.operations.lease.tokens import drop_active, reschedule_active
from fairlane.protocol import keys
from fairlane.protocol.scripts import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.options import Policy
    from fairlane.protocol.steps import Call, Operation


class Intent(NamedTuple):
    """The score in `active` of a request that is about to be written, and the score before it."""

    score: int
    before: str  # the score as Redis wrote it; "0" = none
    shards: str = ""  # where its tokens will go


def announce(
    policy: Policy, ids: Sequence[str], above: int = 0
) -> Operation[tuple[int, list[Intent]]]:
    """Announces requests in `active`; returns the queue's bound (0 = none), and an intent for each.

    `above` is a score that the auditor gave up. At most 400 ids, each once.
    """
    names = (keys.active(policy.queue), keys.conf(policy.queue))
    grace = grace_ms(policy)
    reply = yield from library().intend(names, grace=grace, above=above, ids=ids).run()
    return reply.max_waiting, read_intents(ids, reply.shards, reply.scores)


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


def read_intents(ids: Sequence[str], shards: bytes, scores: list[Any]) -> list[Intent]:
    """Reads the reply of intend: the shards, then for each id its score and the former one."""
    spread = Shards.of(shards)
    return [
        Intent(score, before.decode(), spread.turned(request_id))
        for request_id, score, before in zip(ids, scores[::2], scores[1::2], strict=True)
    ]


def seen_to_exist(due_ms: int) -> str:
    """Returns the score in `active` of a request that exists; if it vanishes, it is lost."""
    return f"{due_ms}.5"


def withdraw(queue: str, request_id: str, intent: Intent) -> Call:
    """Takes an intent back: the entry gets its former score, or is removed if it had none.

    An entry that has another score by now stays: it is a newer intent, whose request may exist.
    """
    if intent.before != "0":
        return reschedule_active(queue, [request_id, intent.score, intent.before])
    return drop_active(queue, request_id, str(intent.score))


def restore(queue: str, request_id: str, intent: Intent, *, is_over: bool) -> Call | None:
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
