"""`fairlane set`: another limit or priority for a request that runs."""

from __future__ import annotations

import click

from fairlane.cli.options import home_option, json_option, open_request, redis_option
from fairlane.cli.output import write_json, write_line
from fairlane.errors import InvalidArgument


@click.command("set", short_help="Change the limit or the priority of a request.")
@click.argument("request_id", metavar="ID")
@click.option(
    "--limit", type=int, metavar="N", help="At most N workers at the same time, 1 to 10000."
)
@click.option("--priority", type=int, metavar="P", help="Lane 0 (first) to 99.")
@home_option
@json_option
@redis_option
def command(
    request_id: str,
    redis: str | None,
    queue: str | None,
    limit: int | None,
    priority: int | None,
    as_json: bool,
) -> int:
    """Change the request ID while it waits or runs, and print what is now in force.

    Slices that workers hold already end first, also above a lower limit. Exit code 1: the request
    has ended; 3: there is no such request.
    """
    from fairlane.cli.exit_status import summary
    from fairlane.options import check_limit, check_priority

    if limit is None and priority is None:
        raise InvalidArgument("there is nothing to set: give --limit N or --priority P")
    if limit is not None:
        check_limit(limit)
    if priority is not None:
        check_priority(priority)
    with open_request(redis, queue, request_id) as request:
        if limit is not None:
            request.set_limit(limit)
        if priority is not None:
            request.set_priority(priority)
        progress = request.progress()
    if as_json:
        write_json(summary(progress))
    else:
        write_line(f"limit {progress.limit}, priority {progress.priority}")
    return 0
