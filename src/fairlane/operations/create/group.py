"""Creates requests with their first chunks: intend [D], enqueue [R], insert_tokens [D].

Where one server has all keys, one script does the three steps for many requests. Elsewhere a group
takes three round trips: all requests are announced, then all are enqueued, then all are followed
up. A request continues alone if its id exists, Redis is full, or the queue has a bound. The order
of the steps is always the same, so a crash at any step heals in the same way.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError, QueueFull, RedisFull, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.operations.create.admission import Admission
from fairlane.operations.create.alone import create_alone, find_born
from fairlane.operations.create.calls import enqueue_calls, read_enqueued
from fairlane.operations.create.intents import announce, restore, withdraw
from fairlane.operations.create.new_request import Begun
from fairlane.operations.create.one_server import submit_on_one_server
from fairlane.operations.create.others import check_others
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.tokens import retire_all
from fairlane.protocol.steps import Batch, Call, Command, LazySteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.operations.create.intents import Intent
    from fairlane.operations.create.new_request import Created, NewRequest
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

GROUP = 400  # requests of one create
Pending = tuple["NewRequest", "Intent | None"]  # None: it is not announced


def create(
    group: Sequence[NewRequest], max_wait_s: float = 0.0
) -> Operation[list[Created | FairlaneError]]:
    """Creates 1 to 400 requests of one queue; returns what Redis has of each, or its error.

    An abandoned request of an id was never complete, so a new one takes its place. The errors are
    RequestExists, RequestEnded (it was cancelled), RedisFull and QueueFull. A request without room
    is tried again for `max_wait_s` seconds. The error of one request does not stop the others, but
    when Redis or the queue is full, nothing more is begun. Raises RedisUnreachable.
    """
    pending: list[Pending] = [(new, None) for new in group]
    bound = 0
    if any(new.policy.after for new in group):
        yield from check_others(group)
    if len(group) > 1:
        with contextlib.suppress(RedisFull):  # then each is tried alone, and its room waited for
            bound, pending = yield from _create_group(group)
    errors = (yield from create_each(pending, max_wait_s, bound)) if pending else {}
    return [new.created or errors[new.id] for new in group]


def _create_group(group: Sequence[NewRequest]) -> Operation[tuple[int, list[Pending]]]:
    """Creates what goes smoothly; returns the queue's bound, and what is to be created alone."""
    found = yield from submit_on_one_server(group)
    if found is None:
        bound, intents = yield from announce(group[0].policy, [new.id for new in group])
        begun = [Begun(new, intent, None) for new, intent in zip(group, intents, strict=True)]
    else:
        bound, begun = found
    if not bound or not any(new.bodies for new in group):
        begun = yield from _enqueue_together(begun)
    return bound, (yield from _follow_up_submitted(begun))


def create_one(new: NewRequest) -> Operation[Created]:
    """Creates one request, and raises its error: see create."""
    (created,) = yield from create([new])
    if isinstance(created, FairlaneError):
        raise created
    return created


def create_each(
    pending: Sequence[Pending], max_wait_s: float, bound: int = 0
) -> Operation[dict[str, FairlaneError]]:
    """Creates one request after the other; returns the errors by id. `bound` is the queue's."""
    errors: dict[str, FairlaneError] = {}
    stop: FairlaneError | None = None
    for new, intent in pending:
        if stop is not None and not (yield from _was_written(new, intent)):
            errors[new.id] = stop
            continue
        room = new.room or Admission(new.id, new.policy.queue, 0.0 if stop else max_wait_s)
        room.bound = bound
        try:
            yield from create_alone(new, room, intent)
        except RedisUnreachable:
            raise
        except FairlaneError as error:  # also a key of this request that cannot be read
            errors[new.id] = error
            if isinstance(error, (RedisFull, QueueFull)):  # else the others are not concerned
                stop = stop or error
    return errors


def _was_written(new: NewRequest, intent: Intent | None) -> Operation[bool]:
    """Returns True if the reply of its creation was lost; else withdraws its intent."""
    if (yield from find_born(new)):
        return True
    if intent is not None:
        yield withdraw(new.policy.queue, new.id, intent)
    return False


# ------------------------------------------------------------------ many together


def _enqueue_together(begun: Sequence[Begun]) -> Operation[list[Begun]]:
    """Enqueues in one batch what is announced only."""
    announced = [(new, intent) for new, intent, reply in begun if intent and not reply]
    if not announced:
        return [*begun]
    calls = LazySteps(len(announced), enqueue_calls(announced))
    replies = iter((yield Batch(calls, lenient=True)))
    return [
        one._replace(reply=_reply_of(next(replies))) if one.intent and not one.reply else one
        for one in begun
    ]


def _reply_of(raw: Any) -> Reply | None:
    return None if isinstance(raw, FairlaneError) else read_enqueued(raw)


def _follow_up_submitted(begun: Sequence[Begun]) -> Operation[list[Pending]]:
    """Follows up the replies of enqueue; returns the requests that did not go smoothly."""
    queue = begun[0].new.policy.queue
    steps, left = list[Command | Call](), list[Pending]()
    done: list[tuple[str, Reply]] = []
    for new, intent, reply in begun:
        if not (intent and reply and (reply.is_ok or reply.is_ended or _is_found(reply))):
            left.append((new, intent))
            continue
        if reply.is_exists:
            if is_over := reply.summary.state.decode() in ENDED_STATES:
                steps += retire_all(queue, [(new.id, reply.summary)])
            step = restore(queue, new.id, intent, is_over=is_over)
            steps += [] if step is None else [step]
        new.note_reply(reply)
        done.append((new.id, reply))
    steps += follow_up(queue, *done)
    if steps:
        yield Batch(steps)
    return left


def _is_found(reply: Reply) -> bool:
    return reply.is_exists and not reply.summary.is_cancelled
