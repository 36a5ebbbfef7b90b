"""What a request's end means: an exit code, and a sentence of counts when it is not all well."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import RequestLost, RequestNotFound
from .talk import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model import Progress
    from ..queue import Request

DEAD_LIST = "fairlane dead list {}"  # the command that lists the dead sub-requests of a request


def judge(progress: Progress) -> int:
    """0 when everything is done; else 1, and says how much is not."""
    if progress.state == "done" and not progress.dead:
        return 0
    why = f" ({progress.reason})" if progress.reason else ""
    dead = f"; the dead: {DEAD_LIST.format(progress.id)}" if progress.dead else ""
    say(
        f"request {progress.id} is {progress.state}{why}: {progress.done:,} done, "
        f"{progress.dead:,} dead, {progress.cancelled:,} cancelled of {progress.total:,}{dead}"
    )
    return 1


@contextmanager
def known(request_id: str) -> Iterator[None]:
    """Raises RequestLost instead of RequestNotFound: the request was in Redis before."""
    from ..operations.watch import vanished

    try:
        yield
    except RequestLost:  # its sentence says more
        raise
    except RequestNotFound:
        raise vanished(request_id) from None


def counts_of(request: Request) -> Progress:
    """Returns the counts of a request that was in Redis before. Raises RequestLost."""
    with known(request.id):
        return request.progress()


def wait_for(request: Request, timeout: float | None) -> None:
    """Waits for the end; Ctrl-C says that the request goes on. Raises WaitTimeout."""
    try:
        request.wait(timeout)
    except KeyboardInterrupt:
        sentence = f"no longer waiting; request {request.id} goes on: fairlane wait {request.id}"
        raise KeyboardInterrupt(sentence) from None


def summary(progress: Progress) -> dict[str, Any]:
    """A request's counts as JSON has them."""
    return {
        "id": progress.id,
        "state": progress.state,
        "queue": progress.queue,
        "priority": progress.priority,
        "limit": progress.limit,
        "held": progress.held,
        "sub_requests": progress.total,
        "done": progress.done,
        "dead": progress.dead,
        "cancelled": progress.cancelled,
        "left": progress.left,
        "open": progress.is_open,
        "reason": progress.reason or None,
        "submitted_ms": progress.submitted_ms,
        "ended_ms": progress.ended_ms or None,
    }
