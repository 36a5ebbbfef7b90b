"""`fairlane list`: the requests of a queue, running and ended, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import (
    after_option,
    filter_options,
    filters_of,
    json_option,
    limit_option,
    open_queue,
    queue_option,
    redis_option,
)
from fairlane.cli.output import (
    note,
    note_unknown,
    request_table,
    write_json,
    write_styled,
)

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from fairlane.records import RequestPage


@click.command("list", short_help="List the requests of a queue, running and ended.")
@filter_options()
@limit_option(50)
@after_option
@click.option(
    "--sort",
    metavar="NAME",
    default="",
    help="Sort by priority, submitted, waiting or state; -submitted shows the newest first.",
)
@queue_option
@json_option
@redis_option
def command(
    redis: str | None, queue: str, as_json: bool, limit: int, after: str, sort: str,
    **wanted: Any,
) -> int:  # fmt: skip
    """List running requests, the most urgent first, then ended ones, the newest first.

    One page reads a bounded part of the queue, so it may be empty though another one follows. The
    last line names its --after. Ended requests come from the completion log, which keeps at least
    about the last 100,000. Of more than 1,000 requests --sort sorts only each part of 1,000 that is
    read.
    """
    filters = filters_of(wanted)
    with open_queue(redis, queue) as opened:
        page = opened.list_requests(limit=limit, after=after, sort=sort, **filters)
        if as_json:
            write_json(page)
        elif page.requests:
            _write_table(page)
        if not page.requests:
            _note_nothing(opened, page, as_json=as_json)
    if page.after and not as_json:
        more = "there may be more" if page.requests else "others were not read yet"
        parts = "" if page.is_sorted or not sort else "; only each part of 1,000 is sorted"
        again = f"--sort={sort} --after {page.after}" if sort else f"--after {page.after}"
        note(f"{more}{parts}: repeat the command with {again}")
    return 0


def _write_table(page: RequestPage) -> None:
    for line in request_table(page.requests, page.now_ms):
        write_styled(line)


def _note_nothing(queue: Queue, page: RequestPage, *, as_json: bool) -> None:
    if not as_json:
        among = " among those that this page read" if page.after else ""
        note(f"no request of queue {queue.name} is listed{among}")
    note_unknown(queue)
