"""What `fairlane status ID` shows of attempts that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.cli.durations import ago
from fairlane.common.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.records import Progress

_HEADLINE = 200  # characters of an error


def failure_rows(progress: Progress, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yields the rows about failed attempts; none if there was none."""
    waiting, due_ms = progress.retries_waiting or 0, progress.next_retry_ms or 0
    yield from _given_back_rows(progress, waiting, due_ms - now_ms)
    if not progress.failures:
        return
    attempts = f"{progress.failures:,} attempt" + ("" if progress.failures == 1 else "s")
    yield "failed", attempts + _next(progress, waiting, due_ms - now_ms)
    last = progress.last_failure
    if last is not None:
        from fairlane.common.fingerprint import read_failure

        failure = read_failure(last.error)
        where = f" ({failure.where})" if failure.where else ""
        yield "error", printable(failure.headline)[:_HEADLINE] + printable(where)
        age = ago(max(0, now_ms - last.at_ms))
        yield "", f"sub-request {last.index} at attempt {last.attempt}, {age} ago"


def _given_back_rows(progress: Progress, waiting: int, left_ms: int) -> Iterator[tuple[str, str]]:
    """Yields why workers gave sub-requests back, while these wait for another one."""
    given_back = progress.given_back
    if given_back is None or not waiting or progress.ended:
        return
    yield "waits", printable(given_back.error)[:_HEADLINE]
    yield (
        "",
        f"{waiting:,} wait{'s' if waiting == 1 else ''}; the next is looked at {_soon(left_ms)}",
    )


def _soon(left_ms: int) -> str:
    return f"in {ago(left_ms)}" if left_ms > 0 else "now"


def _next(progress: Progress, waiting: int, left_ms: int) -> str:
    if not waiting or progress.state not in {"active", "paused"}:
        return ""
    verb = "waits" if waiting == 1 else "wait"
    when = f"the next is due {_soon(left_ms)}"
    if progress.state == "paused":
        when = f"after `fairlane resume {progress.id}`"
    return f"; {waiting:,} {verb} for another, {when}"
