"""Returns the exit code for a request's end, and prints the counts unless all is done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlane.cli.output import note
from fairlane.errors import RedisUnreachable, RequestLost, RequestNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.queue import Queue
    from fairlane.records import Progress
    from fairlane.request import Request

DEAD_LIST = "fairlane dead list {}"  # the command that lists the dead sub-requests of a request


def judge(progress: Progress, dead: str) -> int:
    """Returns 0 if all is done. Else prints the counts and `dead` (of dead_of), and returns 1."""
    if progress.state == "done" and not progress.dead:
        return 0
    why = f" ({progress.reason})" if progress.reason else ""
    word = progress.state if progress.outcome == "partly_failed" else progress.shown_state
    note(  # the counts say how many are dead
        f"request {progress.id} is {word}{why}: {progress.done:,} done, "
        f"{progress.dead:,} dead, {progress.cancelled:,} cancelled of {progress.total:,}"
        + left_out_words(progress)
        + (f"; the dead: {dead}" if dead else "")
    )
    return 1


def so_far(now: Progress) -> str:
    """Returns " so far" for the total of an open request, because more may come; else ""."""
    return " so far" if now.is_open and not now.ended else ""


def left_out_words(progress: Progress) -> str:
    """Returns how many bodies of a distinct request were repeats, "" if none."""
    if not progress.left_out:
        return ""
    is_one = progress.left_out == 1
    words = "body was left out as a repeat" if is_one else "bodies were left out as repeats"
    return f"; {progress.left_out:,} {words}"


def dead_of(queue: Queue, progress: Progress) -> str:
    """Returns how to list the dead sub-requests, and whether some were dropped; "" if none."""
    from fairlane.operations.dead_letters import count_dead

    if not progress.dead:
        return ""
    kept = queue.driver.run(count_dead(progress.id))
    gone = gone_words(progress, kept)
    listed = DEAD_LIST.format(progress.id)
    if gone and kept:
        return f"{gone}; the others: {listed}"
    return gone or listed


def gone_words(progress: Progress, kept: int) -> str:
    """Returns how many of the dead were dropped (all but `kept`); "" if none."""
    gone = progress.dead - kept
    if gone <= 0:
        return ""
    return f"{f'{gone:,}' if kept > 0 else 'all'} dropped since"


@contextmanager
def known(request_id: str) -> Iterator[None]:
    """Raises RequestLost instead of RequestNotFound, because the request was in Redis before."""
    from fairlane.operations.completion import vanished

    try:
        yield
    except RequestLost:  # its text has more details
        raise
    except RequestNotFound:
        raise vanished(request_id) from None


def counts_of(request: Request) -> Progress:
    """Returns the counts of a request that was in Redis before. Raises RequestLost."""
    with known(request.id):
        return request.progress()


def wait_for(request: Request, timeout: float | None) -> None:
    """Waits for the end, and reports if no worker serves the queue. Raises WaitTimeout."""
    from fairlane.cli.progress import StallNotice
    from fairlane.common import clock
    from fairlane.operations.completion import wait

    waiting = wait(request.id, clock.mono_s, timeout)
    request.queue.driver.run(StallNotice(request.id).during(waiting))


@contextmanager
def naming_what_goes_on(
    request_id: str, what: str = "no longer waiting", again: str = "", resume: str = ""
) -> Iterator[None]:
    """Adds the next command to the text of Ctrl-C or an outage, because the request goes on.

    The command is `again` (default: `fairlane wait`). After an outage it is `resume`, if given.
    """
    again = again or f"fairlane wait {request_id}"
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{what}; request {request_id} goes on: {again}") from None
    except RedisUnreachable as error:
        next_step = f"when Redis answers, {resume or again}"
        raise RedisUnreachable(f"{error}; {what}: {next_step}") from None
