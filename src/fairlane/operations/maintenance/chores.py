"""What the leading worker does for requests that age, or wait for others.

Both depend on the time or on other slots, so no script of the request alone can do them. A chore
may be done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.operations.create.lives import DONE, endings_of, lives_text, read_lives
from fairlane.operations.lease.follow_up import follow_up
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch

if TYPE_CHECKING:
    from fairlane.protocol.steps import Call, Operation


def do_chore(queue: str, request_id: str, chore: str) -> Operation[None]:
    """Does what a glance has reported: hastens a request, or starts it after others."""
    if chore == "aged":
        yield from _run(queue, request_id, library().hasten(keys.request_keys(request_id)))
        return
    mode, lives = read_lives(chore)
    endings = yield from endings_of(lives)
    failures = [
        f"after: request {life.id} {ending}"
        for life, ending in zip(lives, endings, strict=True)
        if ending and mode == DONE
    ]
    # A life that has ended is not read again: its tombstone may expire before the others end.
    later = [
        life if ending is None else life._replace(is_over=True)
        for life, ending in zip(lives, endings, strict=True)
    ]
    if later == lives and not failures and None in endings:
        return
    call = library().open_gate(
        keys.request_keys(request_id),
        found=chore,
        left=f"{mode}:{lives_text(later)}" if None in endings else "",
        reason=failures[0] if failures else "",
    )
    yield from _run(queue, request_id, call)


def _run(queue: str, request_id: str, call: Call) -> Operation[None]:
    reply = yield from call.run()
    if calls := follow_up(queue, (request_id, reply)):
        yield Batch(calls)
