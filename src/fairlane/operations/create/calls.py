"""The calls of the scripts that create requests; nothing else calls these scripts.

A producer makes tens of thousands of these calls a second, so their arguments are given in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.create.digest import sent_extras, terms
from fairlane.operations.create.intents import grace_ms
from fairlane.operations.lease.leases import signed
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import TextCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.operations.create.intents import Intent
    from fairlane.operations.create.new_request import NewRequest
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Arg, Call

_PER_CALL = 50  # of submit: the server works on one call while the next is made
_SUBMIT = ("now", "queue", "policy", "extras", "grace", "open_ms")
_ENQUEUE = ("now", "queue", "policy", "digest", "intent", "open_ms", "extras", "shards", "over")


def read_enqueued(raw: Sequence[Any]) -> Reply:
    """Returns what Redis replied to enqueue, also as a part of the reply to submit."""
    return library().enqueue.reply(raw)


def read_submitted(raw: Sequence[Any]) -> Reply:
    """Returns what Redis replied to submit."""
    return library().submit.reply(raw)


def parts_of(group: Sequence[NewRequest]) -> list[list[NewRequest]]:
    """Returns the group in parts for one call each: requests of the same policy, in their order."""
    parts = [[group[0]]]
    for new in group[1:]:
        first = parts[-1][0]
        is_same = new.policy is first.policy or new.policy == first.policy
        is_same = is_same and new.lives == first.lives
        if is_same and new.open_ms == first.open_ms and len(parts[-1]) < _PER_CALL:
            parts[-1].append(new)
        else:
            parts.append([new])
    return parts


def submit_call(part: Sequence[NewRequest]) -> Call:
    """Returns the call of submit for requests of the same policy."""
    first = part[0]
    (queue, policy, _), extras = terms(first.policy), sent_extras(first.policy, first.lives)
    home = first.policy.queue
    args: list[Arg] = [
        b"", queue, policy, extras, b"%d" % grace_ms(first.policy), b"%d" % first.open_ms,
    ]  # fmt: skip
    for new in part:
        texts = (*new.bodies, new.ids) if first.policy.distinct else new.bodies
        args += (new.digest.hex, b"%d" % len(texts), *texts)
    lane = keys.lanes(home)[first.policy.priority]
    hashes = [keys.request_hash(new.id) for new in part]
    names = (keys.active(home), keys.conf(home), lane, *keys.turns(home), *hashes)
    return TextCall(signed(library(), "submit", _SUBMIT), names, args)


def enqueue_calls(pairs: Iterable[tuple[NewRequest, Intent]], over: int = 0) -> Iterator[Call]:
    """Yields the call of enqueue for each request; most requests of a group share a policy."""
    script, replaced = signed(library(), "enqueue", _ENQUEUE), b"%d" % over
    policy, lives, queue, text, extras = None, "", b"", b"", b""
    for new, intent in pairs:
        if new.policy is not policy or new.lives != lives:
            policy, lives = new.policy, new.lives
            (queue, text, _), extras = terms(policy), sent_extras(policy, lives)
        args: list[Arg] = [
            b"", queue, text, new.digest.hex, b"%d" % intent.score, b"%d" % new.open_ms, extras,
            intent.shards, replaced, *new.bodies,
        ]  # fmt: skip
        if policy.distinct:
            args.append(new.ids)
        yield TextCall(script, new.names, args)
