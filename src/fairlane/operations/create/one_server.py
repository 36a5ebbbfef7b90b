"""Creates requests by one script, where one server has all keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import FairlaneError
from fairlane.operations.create.calls import (
    parts_of,
    read_enqueued,
    read_submitted,
    submit_call,
)
from fairlane.operations.create.intents import read_intents
from fairlane.operations.create.new_request import Begun
from fairlane.protocol.steps import Batch, LazySteps, SingleServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.operations.create.new_request import NewRequest
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation


def submit_on_one_server(
    group: Sequence[NewRequest],
) -> Operation[tuple[int, list[Begun]] | None]:
    """Does all three steps by one script; returns the queue's bound, and how far each came.

    None = no server has all keys, and nothing was done. The error of a single call is raised.
    """
    parts = parts_of(group)
    if len(parts) == 1:
        raw = yield SingleServer(submit_call(group))
        replies = None if raw is None else [raw]
    else:
        calls = LazySteps(len(parts), map(submit_call, parts))
        replies = yield SingleServer(Batch(calls, lenient=True))
    if replies is None:
        return None
    bound, begun = 0, list[Begun]()
    for part, raw in zip(parts, replies, strict=True):
        if isinstance(raw, FairlaneError):
            begun += [Begun(new, None, None) for new in part]
            continue
        reply = read_submitted(raw)
        bound = reply.max_waiting
        begun += _read_submitted(part, reply)
    return bound, begun


def _read_submitted(part: Sequence[NewRequest], reply: Reply) -> Iterator[Begun]:
    rows = reply.submitted
    scores = [value for row in zip(rows[::3], rows[1::3], strict=True) for value in row]
    intents = read_intents([new.id for new in part], reply.shards, scores)
    for new, intent, enqueued in zip(part, intents, rows[2::3], strict=True):
        yield Begun(new, intent, read_enqueued(enqueued) if enqueued else None)
