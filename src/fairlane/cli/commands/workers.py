"""`fairlane workers`: the workers of a queue, alive or dead, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlane.cli.options import json_option, limit_option, open_queue, queue_option, redis_option
from fairlane.cli.output import State, ago, note, note_unknown, table, write_json, write_styled
from fairlane.common.text import of_queue, plural

if TYPE_CHECKING:
    from fairlane.cli.output import Cell
    from fairlane.records import WorkerState

_HEAD = ("WORKER", "STATE", "HOST", "PID", "SINCE", "LAST BEAT", "RELEASE", "HOLDS")
_CALLS = 3  # calls that are named


@click.command("workers", short_help="List the workers of a queue, and what they hold.")
@limit_option(100)
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, limit: int, as_json: bool) -> int:
    """List the workers of a queue with the newest heartbeats, those that are alive first.

    A worker whose heartbeat is late is dead, stopped or cut off, and is listed as dead. A worker
    that ended by itself is not listed.
    """
    with open_queue(redis, queue) as opened:
        page = opened.workers(limit)
        for line in [] if as_json else _lines(page.workers):
            write_styled(line)
        for worker in page.workers if as_json else []:
            write_json(worker)
        if not page.workers:
            if not as_json:
                start = f"rq-worker --handler module:function{of_queue(queue)} starts one"
                note(f"queue {queue} has no worker: {start}")
            note_unknown(opened)
    if page.more:
        note(f"{plural(page.more, 'worker')} with older heartbeats left out: see --limit")
    return 0


def _lines(workers: list[WorkerState]) -> list[str]:
    return [*table(_HEAD, map(_row, workers))] if workers else []


def _row(worker: WorkerState) -> tuple[Cell, ...]:
    started_ms = worker.started_ms or 0
    since_ms = worker.beat_ms + worker.beat_age_ms - started_ms
    return (
        worker.id,
        State("alive" if worker.is_alive else "dead"),
        worker.host or "-",
        str(worker.pid or "-"),
        f"{ago(max(0, since_ms))} ago" if started_ms else "-",
        f"{ago(worker.beat_age_ms)} ago",
        worker.release or "-",
        _holds(worker),
    )


def _holds(worker: WorkerState) -> str:
    """Returns the leases of the last beat, and the calls that reported how far they are."""
    shown = [
        f"{one.id} sub-request {one.index} at {one.done:,} of {one.total:,}"
        for one in worker.calls[:_CALLS]
    ]
    more = [f"{len(worker.calls) - _CALLS} more calls"] if len(worker.calls) > _CALLS else []
    return "; ".join([plural(worker.leases, "lease"), *shown, *more])
