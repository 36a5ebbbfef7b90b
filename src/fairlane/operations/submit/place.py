"""Places a request in the shortest of several queues: the one with the fewest unfinished requests.

Where one server has all keys, one script compares and announces the request in that queue, so the
next one counts it. In a cluster a bounded look compares the queues.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.lease.tokens import drop_active
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command, SingleServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.protocol.steps import Operation

LOOKS = 8  # queues of one look
MOST_QUEUES = 100


class Place(NamedTuple):
    """The queue for a request. `score`: of its intent there, "" = there is none to withdraw."""

    queue: str
    score: str


def check_queues(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of 1 to 100 different queues. Raises InvalidArgument."""
    return keys.check_names("queue", names, MOST_QUEUES)


def place(names: Sequence[str], request_id: str) -> Operation[Place]:
    """Returns the queue for a request; a request that exists in one of them stays there.

    Raises InvalidArgument, RedisError.
    """
    keys.check_name("request id", request_id)
    actives = [keys.active(name) for name in names]
    call = library().place(
        (keys.request_hash(request_id), *actives),
        id=request_id,
        grace=settings.INTENT_GRACE_MS,
        queues=names,
    )
    raw = yield SingleServer(call)
    if raw is not None:
        reply = call.reply(raw)
        return Place(names[reply.at], reply.score.decode())
    return Place((yield from _look(names, request_id)), "")


def _look(names: Sequence[str], request_id: str) -> Operation[str]:
    """Returns the queue of a request that exists, else the shortest of at most eight.

    A queue whose node does not answer is left out. Raises the first error if all are.
    """
    looked = names if len(names) <= LOOKS else random.sample(names, LOOKS)
    home, *counts = yield Batch(
        [
            Command(b"HGET", keys.request_hash(request_id), b"queue"),
            *(Command(b"ZCARD", keys.active(name)) for name in looked),
        ],
        lenient=True,
    )
    if isinstance(home, bytes) and home.decode("utf-8", "replace") in names:
        return home.decode()
    for one in counts:
        if isinstance(one, FairlaneError) and not isinstance(one, RedisUnreachable):
            raise one
    known = {
        name: count for name, count in zip(looked, counts, strict=True) if isinstance(count, int)
    }
    if not known:
        raise counts[0]
    return min(known, key=lambda name: known[name])


def withdraw(found: Place, request_id: str) -> Operation[None]:
    """Takes back the intent of a request that could not be submitted, if it is still that one."""
    if found.score:
        yield drop_active(found.queue, request_id, found.score)
