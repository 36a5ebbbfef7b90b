"""`fairlane wait`: blocks until a request has ended."""

from __future__ import annotations

import click

from fairlane.cli.options import (
    home_option,
    json_option,
    open_request,
    redis_option,
    timeout_option,
    timeout_s,
)
from fairlane.cli.output import write_json, write_line


@click.command("wait", short_help="Wait until a request has ended and print how.")
@click.argument("request_id", metavar="ID")
@timeout_option
@home_option
@json_option
@redis_option
def command(
    request_id: str, redis: str | None, queue: str | None, timeout: str | None, as_json: bool
) -> int:
    """Wait until the request ID has ended and print how it came out.

    That is done, failed (no sub-request is done, and some are dead), "done, N dead" or cancelled.
    """
    from fairlane.cli.exit_status import (
        counts_of,
        dead_of,
        judge,
        naming_what_goes_on,
        wait_for,
    )

    limit = timeout_s(timeout)
    with open_request(redis, queue, request_id) as request, naming_what_goes_on(request_id):
        wait_for(request, limit)
        progress = counts_of(request)
        dead = dead_of(request.queue, progress)
    if as_json:
        write_json(progress)
    else:
        write_line(progress.shown_state)
    return judge(progress, dead)
