"""Other requests that a new one depends on: one with its id, and those that it starts after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import InvalidArgument, RequestExists, RequestNotFound
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all
from fairlane.operations.follow_up import follow_up
from fairlane.operations.lives import Life, circle_text, find_circles, lives_text
from fairlane.operations.new_request import FormerRequest, RequestKept
from fairlane.operations.tokens import count_stop
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.steps import Batch, Command, Pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.operations.new_request import NewRequest
    from fairlane.protocol.replies import Summary


_OF_OTHER = ("state", "born", "queue")
_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)  # while what was cancelled ends


async def make_way(new: NewRequest, other: Summary) -> None:
    """Returns when the new request may be tried again, because the other one was cancelled.

    Raises RequestKept if the other one stays, and RequestExists if it does not end soon.
    """
    if other.state.decode() in ENDED_STATES:  # it began less than the window ago
        raise RequestKept(new.id, other.total)
    if other.state != b"cancelling":  # it counts no more; what workers hold of it ends first
        how = new.policy.on_duplicate
        if how == "keep" or (how == "debounce" and await _has_started(new.id)):
            raise RequestKept(new.id, other.total)
    await ask_guard(new, other)
    await _cancel(new)


async def ask_guard(new: NewRequest, other: Summary, *, is_same: bool = False) -> None:
    """Lets the guard of a new request judge the other request of its id; raises what it raises."""
    if new.guard is None:
        return
    (by,) = await read(new.id, "by")
    await new.guard(FormerRequest(new.id, by, other.born, is_same))


async def _has_started(request_id: str) -> bool:
    """Returns True if a worker had a part of the request, or it was submitted without a delay.

    `seq` is at least the time of the last lease in us (lua/v1/lib/lease.lua). So it shows
    an attempt that failed, too.
    """
    opens, seq, born = await read(request_id, "opens", "seq", "born")
    return not int(opens or 0) or int(seq or 0) >= 1_000 * int(born or 0)


async def _cancel(new: NewRequest) -> None:
    names, queue = keys.request_keys(new.id), new.policy.queue
    for pause_s in (0.0, *_PAUSES_S):
        if pause_s:
            await Pause(pause_s)
        reply = await scripts.cancel(names, reason="replaced")
        if calls := follow_up(queue, (new.id, reply)):
            await Batch(calls)
        if not reply.is_ok:  # ended, or gone
            return
        await count_stop(queue)
    raise RequestExists(
        f"request {new.id} is being cancelled, and workers or programs still hold a part of it: "
        "submit it again when it has ended"
    )


async def check_others(group: Sequence[NewRequest]) -> None:
    """Notes which lives of other requests each new one starts after.

    Raises RequestNotFound for a request that does not exist, InvalidArgument for a circle. A repeat
    of a submission that is there already is not refused: the others may have expired.
    """
    for new in group:
        if new.id in new.policy.after:
            raise InvalidArgument(f"request {new.id} cannot start after itself")
    others = list(dict.fromkeys(name for new in group for name in new.policy.after))
    asked = [new for new in group if new.policy.after]
    rows = await run_all([hmget(name, *_OF_OTHER) for name in others])
    known = {
        name: Life(name, int(born or 0), queue)
        for name, row in zip(others, rows, strict=True)
        for state, born, queue in [parse_fields(_OF_OTHER, row)]
        if state and state != "abandoned"
    }
    states = await run_all([Command(b"HGET", keys.request_hash(new.id), b"state") for new in asked])
    for new, state in zip(asked, states, strict=True):
        missing = [name for name in new.policy.after if name not in known]
        may_be_repeat = state is not None and not new.policy.on_duplicate
        if missing and not may_be_repeat:
            raise RequestNotFound(
                f"there is no request {missing[0]}, after which request {new.id} is to start: "
                "submit that one first"
            )
        lives = [known.get(name, Life(name)) for name in new.policy.after]
        if state is not None:  # others may wait for the id
            await _check_no_circle(new.id, lives)
        new.lives = lives_text(lives)


async def _check_no_circle(request_id: str, lives: Sequence[Life]) -> None:
    circles = await find_circles({request_id: lives})
    if circles:
        raise InvalidArgument(
            f"request {request_id} would wait in a circle: {circle_text(circles[0])}; cancel one "
            "of them, or leave out `after`"
        )
