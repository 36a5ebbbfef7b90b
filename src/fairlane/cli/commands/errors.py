"""`fairlane errors`: how sub-requests of a request, or of a queue, failed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import (
    TASK_HELP,
    any_or_home_option,
    dead_filters,
    dead_filters_of,
    json_option,
    open_queue,
    open_request,
    redis_option,
)
from fairlane.cli.output import (
    ago,
    coloured,
    dead_words,
    group_lines,
    note,
    note_unknown,
    short,
    write_json,
    write_styled,
)
from fairlane.common.task_names import tasks_words
from fairlane.common.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.model import DeadFilters
    from fairlane.queue import Queue
    from fairlane.records import FailedAttempt, Progress, RequestErrors


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


# ------------------------------------------------------------------ errors
# `fairlane errors`: how sub-requests of a request, or of a queue, failed.


@click.command("errors", short_help="Show how sub-requests of a request, or of a queue, failed.")
@click.argument("request_id", metavar="[ID]", required=False)
@dead_filters
@click.option("--task", "tasks", multiple=True, metavar="NAME", help=TASK_HELP)
@any_or_home_option
@json_option
@redis_option
def command(
    request_id: str | None, redis: str | None, queue: str | None, as_json: bool, **given: Any
) -> int:
    """Show how sub-requests of ID failed: those that are dead, and those that are tried again.

    Dead ones with equal failures are one group. Of those that wait for another attempt, Redis keeps
    how many they are and the last error; its fingerprint is the one that they have if they die of
    it. `dead list ID --each` has the body of each dead sub-request.

    Without ID the dead of all requests of a queue are grouped, up to 100,000 of them, and then the
    unfinished requests whose sub-requests are tried again, by their last failure.
    """
    if request_id is None:
        with open_queue(redis, queue) as opened:
            _show_queue(opened, dead_filters_of(given), as_json=as_json)
        return 0
    with open_request(redis, queue, request_id) as request:
        found = request.errors(**dead_filters_of(given))
    for group in found.groups:
        if as_json:
            write_json({"state": "dead", **asdict(group)})
        else:
            for line in group_lines(group, found.now_ms):
                write_styled(line)
    last = found.last_error
    if last is not None and found.retries:
        if as_json:
            write_json(_retry_fields(found, last))
        else:
            for line in _retry_lines(found, last):
                write_styled(line)
    for sentence in [] if as_json else _notes(found):
        note(sentence)
    return 0


def _show_queue(queue: Queue, filters: DeadFilters, *, as_json: bool) -> None:
    from fairlane.common.text import plural

    found = queue.errors(**filters)
    for group in found.groups:
        if as_json:
            write_json({"state": "dead", **asdict(group)})
            continue
        words = dead_words(group)
        where = f" ({short(group.where)})" if group.where else ""
        write_styled(f"{group.fingerprint}  {words}: {short(group.headline)}{where}")
        examples = ", ".join(f"{one.id} index {one.index}" for one in group.examples)
        tasks = f"{short(tasks_words(group.tasks))}; " if group.tasks else ""
        count = plural(group.requests, "request")
        write_styled(f"            {tasks}in {count}: {short(examples)}")
    for retry in found.retries:
        if as_json:
            write_json({"state": "retry", **asdict(retry)})
            continue
        verb = "waits" if retry.count == 1 else "wait"
        words = coloured("retry", f"{retry.count:,} {verb} (to be tried again)")
        where = f" ({short(retry.where)})" if retry.where else ""
        write_styled(f"{retry.fingerprint}  {words}: {short(retry.headline)}{where}")
        tasks = f"{short(tasks_words(retry.tasks))}; " if retry.tasks else ""
        count = plural(retry.requests, "request")
        write_styled(f"            {tasks}in {count}: {short(', '.join(retry.examples))}")
    if not found.groups and not found.retries:
        such = "such " if filters else ""
        what = f"{such}dead sub-requests, and none waits to be tried again after a failure"
        note(f"no request of queue {queue.name} has {what}")
        note_unknown(queue)
    if found.release is not None and any(group.is_new for group in found.groups):
        note(f"new: none that is kept failed so before release {found.release.name}")
    if found.more or found.unread:
        note(
            f"{found.more:,} more dead sub-requests, and those of {found.unread:,} more requests, "
            "were not read"
        )


def _retry_lines(found: RequestErrors, last: FailedAttempt) -> Iterator[str]:
    from fairlane.common.fingerprint import FAILED_LAST, fingerprint_of, read_failure

    failure = read_failure(last.error)
    verb = "waits" if found.retries == 1 else "wait"
    words = coloured("retry", f"{found.retries:,} {verb}")
    why = "given back" if found.is_given_back else "to be tried again"
    yield (
        f"{fingerprint_of(FAILED_LAST, last.error)}  {words} ({why}), the last error: "
        f"{short(failure.headline)}"
    )
    where = f"{short(failure.where)}; " if failure.where else ""
    when = ago(max(0, found.now_ms - last.at_ms))
    at = f"index {last.index} at attempt {last.attempt}, {when} ago"
    yield f"            {where}{at}; the next attempt is due {_due(found)}"


def _due(found: RequestErrors) -> str:
    left_ms = (found.due_ms or 0) - found.now_ms
    return f"in {ago(left_ms)}" if left_ms > 0 else "now"


def _retry_fields(found: RequestErrors, last: FailedAttempt) -> dict[str, Any]:
    from fairlane.common.fingerprint import FAILED_LAST, fingerprint_of, read_failure

    failure = read_failure(last.error)
    return {
        "state": "given back" if found.is_given_back else "retry",
        "fingerprint": fingerprint_of(FAILED_LAST, last.error),
        "count": found.retries,
        "headline": failure.headline,
        "where": failure.where or None,
        "index": last.index,
        "attempt": last.attempt,
        "last_ms": last.at_ms,
        "due_ms": found.due_ms,
    }


def _notes(found: RequestErrors) -> Iterator[str]:
    """Yields what the groups do not show."""
    from fairlane.common.text import plural

    counts = found.request
    if found.more:
        yield f"{found.more:,} more dead sub-requests were not read"
    if found.retries and found.last_error is None:
        count = plural(found.retries, "sub-request")
        yield (
            f"{count} to be tried again, without an error, as after the end of a process; "
            f"the next attempt is due {_due(found)}"
        )
    if found.groups:
        yield f"to run the dead again: fairlane dead requeue {counts.id} --all"
    elif not found.retries:
        failed = f"{counts.failures:,} attempts failed; " if counts.failures else ""
        yield f"{failed}request {counts.id} has no dead sub-request, and none waits for a retry"
