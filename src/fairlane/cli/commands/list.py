"""`fairlane list`: the requests of a queue, running and ended, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.display.tables import AGES, REQUESTS, age_cells, request_cells, table
from fairlane.cli.display.unknown_queue import note_unknown
from fairlane.cli.options import (
    after_option,
    json_option,
    limit_option,
    open_queue,
    queue_option,
    redis_option,
)
from fairlane.cli.output import note, write_json, write_styled
from fairlane.cli.selection.filters import filter_options, filters_of
from fairlane.model import Completion, Progress

if TYPE_CHECKING:
    from fairlane.found import RequestPage
    from fairlane.queue import Queue


@click.command("list", short_help="List the requests of a queue, running and ended.")
@filter_options()
@limit_option(50)
@after_option
@queue_option
@json_option
@redis_option
def command(
    redis: str | None, queue: str, as_json: bool, limit: int, after: str,
    **wanted: Any,
) -> int:  # fmt: skip
    """List running requests, the most urgent first, then ended ones, the newest first.

    One page reads a bounded part of the queue, so it may be empty though another one follows. The
    last line names its --after. Ended requests come from the completion log, which keeps about the
    last 100,000.
    """
    filters = filters_of(wanted)
    with open_queue(redis, queue) as opened:
        page = opened.list_requests(limit=limit, after=after, **filters)
        if as_json:
            rows = [_fields(request) for request in page.requests]
            write_json({"queue": queue, "requests": rows, "after": page.after or None})
        elif page.requests:
            _write_table(page)
        if not page.requests:
            _note_nothing(opened, page, as_json=as_json)
    if page.after and not as_json:
        more = "there may be more" if page.requests else "others were not read yet"
        note(f"{more}: repeat the command with --after {page.after}")
    return 0


def _write_table(page: RequestPage) -> None:
    body = ((*request_cells(one), *age_cells(one, page.now_ms)) for one in page.requests)
    for line in table((*REQUESTS, *AGES), body):
        write_styled(line)


def _note_nothing(queue: Queue, page: RequestPage, *, as_json: bool) -> None:
    if not as_json:
        among = " among those that this page read" if page.after else ""
        note(f"no request of queue {queue.name} is listed{among}")
    note_unknown(queue)


def _fields(request: Progress | Completion) -> dict[str, Any]:
    """Returns one request as JSON has it; an ended one has no permits."""
    permits = (None, None) if isinstance(request, Completion) else (request.held, request.limit)
    return {
        "id": request.id,
        "state": request.state,
        "priority": request.priority,
        "sub_requests": request.total,
        "done": request.done,
        "dead": request.dead,
        "cancelled": request.cancelled,
        "held": permits[0],
        "limit": permits[1],
        "open": isinstance(request, Progress) and request.is_open,
        "reason": request.reason or None,
        "tags": list(request.tags),
        "tenant": request.tenant or None,
        "submitted_ms": request.submitted_ms,
        "ended_ms": request.ended_ms or None,
    }
