"""The hint about a queue that was never used on this Redis: its name may be mistyped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.cli.output import note

if TYPE_CHECKING:
    from fairlane.queue import Queue


def note_unknown(queue: Queue) -> None:
    """Notes that a queue was never used, and which one may be meant; the exit code stays."""
    if hint := unknown(queue):
        note(hint)


def unknown(queue: Queue) -> str:
    """Returns the hint; "" if the queue is known, or if it and no other one is on this Redis.

    It looks at about 100,000 keys. If this user may not do that, it also returns "".
    """
    from fairlane.common.text import join_names
    from fairlane.errors import FairlaneError
    from fairlane.operations.queues import is_known, similar_queues

    try:
        if queue.driver.run(is_known(queue.name)):
            return ""
        near, others = queue.driver.run(similar_queues(queue.name))
    except FairlaneError:
        return ""
    if not others or queue.name in {*near, *others}:  # its first request has just come
        return ""
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"others on it are {join_names(others)}"
    )
    return f"queue {queue.name} has never been used on this Redis; {hint}"
