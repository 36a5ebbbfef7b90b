"""`fairlane tasks`: the tasks of a queue, those first that need a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import ago, note, note_unknown, short, table, write_json, write_styled
from fairlane.common.text import brief_ms, figure, plural, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.call_records import LongCall, TaskPage, TaskState

_MEASURED = ("PER S", "DONE", "FAILED", "p50", "p99", "SLOWEST")
_HEAD = ("TASK", "WAITING", "RUNNING", "DEAD", *_MEASURED, "LOOK AT")
_RELEASE_HEAD = ("TASK", "RELEASE", *_MEASURED, "LOOK AT")
_ROWS, _NAME = 50, 40  # rows of the table, and characters of a name
_CALLS = 5  # calls that run unusually long and are named


@click.command("tasks", short_help="Show the tasks of a queue: pace, failures, what waits.")
@click.option(
    "--by",
    type=click.Choice(["task", "release"]),
    default="task",
    show_default=True,
    help="One row for each task, or for each task and release of your code.",
)
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, by: str, as_json: bool) -> int:
    """Show the tasks of a queue, those first that need a person: calls that hang, failures, dead.

    PER S is the pace of the last one to two minutes. DONE, FAILED and the durations are since the
    first call, or since `fairlane stats --reset`. 200 tasks have numbers of their own, and the
    others count as `other`.
    """
    with open_queue(redis, queue) as opened:
        page = opened.tasks(by_release=by == "release")
        if not page.tasks:
            note_unknown(opened)
    if as_json:
        write_json({"queue": queue, "by": by, **_fields(page)})
        return 0
    shown = page.tasks[:_ROWS]
    if shown:
        row, head = (_release_row, _RELEASE_HEAD) if by == "release" else (_row, _HEAD)
        for line in table(head, map(row, shown)):
            write_styled(line)
    elif by == "release":
        note(f"nothing was measured by release of queue {queue}: fairlane tasks has what waits")
    else:
        note(f"queue {queue} has no call of a task, and none was measured")
    for call in page.long_calls[:_CALLS]:
        note(_long_call(call))
    for text in _notes(page, len(shown)):
        note(text)
    return 0


def _fields(page: TaskPage) -> dict[str, object]:
    return {name: getattr(page, name) for name in page.__dataclass_fields__}


def _row(one: TaskState) -> tuple[str, ...]:
    counts = (one.waiting, one.running, one.dead)
    return (short(one.task, _NAME), *(f"{count or 0:,}" for count in counts), *_measured(one))


def _release_row(one: TaskState) -> tuple[str, ...]:
    return (short(one.task, _NAME), one.release or "-", *_measured(one))


def _measured(one: TaskState) -> Iterator[str]:
    yield figure(one.per_s)
    yield f"{one.done:,}"
    yield f"{one.failed:,}"
    for ms in (one.p50_ms, one.p99_ms, one.slowest_ms):
        yield "-" if ms is None else brief_ms(ms)
    yield one.problem


def _long_call(one: LongCall) -> str:
    return (
        f"{one.what} of request {one.id} has run for {ago(one.ran_ms)} on worker {one.worker}; "
        f"{one.usual}: {one.remedy}"
    )


def _notes(page: TaskPage, shown: int) -> Iterator[str]:
    """Yields what the table does not show."""
    if len(page.long_calls) > _CALLS:
        yield f"{len(page.long_calls) - _CALLS:,} more calls run unusually long"
    if left := len(page.tasks) - shown + page.more:
        yield f"{plural(left, 'task')} more: --json shows up to 200"
    if not page.is_exact:
        yield "what waits, runs and is dead is an estimate: a part was read, or requests mix tasks"
    if page.releases:
        newest = page.releases[0]
        yield f"the newest release is {newest.name}, since {when(newest.first_ms, page.now_ms)}"
