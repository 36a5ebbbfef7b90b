"""The handlers of the fleet's workers. Each body names its kind, request and index.

Kinds: e(cho), s(low: 2 to 20 ms), f(laky: fails at its first attempt), l(ong: 100 ms), w(aits:
1.2 s) and h(eld: 4 s, more than its lease). The result is the body and the fence it was made
under, so that the checker sees which of several executions was counted.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from tests.chaos.evidence.journal import BEGAN, CANCELLED, ENDED, RAISED, Writer

if TYPE_CHECKING:
    from fairlane.worker import Context

SLOW = {b"s": 0.0, b"l": 0.1, b"w": 1.2, b"h": 4.0}
_journal = Writer()


def body_of(kind: str, number: int, index: int) -> bytes:
    return b"%b%d.%d" % (kind.encode(), number, index)


def name_of(number: int) -> str:
    return f"c{number}"


def is_planned(request_id: str) -> bool:
    """Returns True for a request of the load; those of flows and schedules have other names."""
    return request_id[1:].isdigit()


def work(body: bytes, context: Context) -> bytes:
    """Does what the body names, and records it."""
    if not is_planned(context.id):
        return body
    number, index = int(context.id[1:]), context.index
    _journal.note(BEGAN, number, index, context.fence, context.attempt)
    kind = body[:1]
    if kind in SLOW:
        threading.Event().wait(_seconds(kind, index))
    return _finish(body, context, number)


async def work_async(body: bytes, context: Context) -> bytes:
    """Does the same as a task.

    A worker that was stopped for longer than its lease cancels the task when it continues, if it
    detects the loss of the lease before the task continues.
    """
    if not is_planned(context.id):
        return body
    number, index = int(context.id[1:]), context.index
    _journal.note(BEGAN, number, index, context.fence, context.attempt)
    kind = body[:1]
    if kind in SLOW:
        try:
            await asyncio.wait_for(asyncio.Event().wait(), _seconds(kind, index))
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            _journal.note(CANCELLED, number, index, context.fence, context.attempt)
            raise
    return _finish(body, context, number)


def _seconds(kind: bytes, index: int) -> float:
    return SLOW[kind] or (2 + index * 7 % 19) / 1000


def _finish(body: bytes, context: Context, number: int) -> bytes:
    index, attempt = context.index, context.attempt
    if body[1:] != b"%d.%d" % (number, index):
        raise AssertionError(f"{body!r} came as {number}.{index}")
    if body[:1] == b"f" and attempt == 1:
        _journal.note(RAISED, number, index, context.fence, attempt)
        raise LookupError("not at the first attempt")
    _journal.note(ENDED, number, index, context.fence, attempt)
    return b"%b %d" % (body, context.fence)
