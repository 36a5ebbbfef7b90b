"""`fairlane cancel`: nothing more of a request starts."""

from __future__ import annotations

import os

import click

from fairlane.cli.options import home_option, json_option, open_request, redis_option
from fairlane.cli.output import note, write_json, write_line


@click.command("cancel", short_help="Cancel a request: nothing more of it starts.")
@click.argument("request_id", metavar="ID")
@click.option(
    "--reason", default="cancelled by the caller", show_default=True, help="Kept with the request."
)
@home_option
@json_option
@redis_option
def command(
    request_id: str, redis: str | None, queue: str | None, reason: str, as_json: bool
) -> int:
    """Cancel the request ID and print its state: cancelling while workers still hold some of it."""
    from fairlane.cli.exit_status import summary

    with open_request(redis, queue, request_id) as request:
        before = request.progress()
        request.cancel(os.fsencode(reason).decode("utf-8", "replace"))
        progress = request.progress()
    if before.ended:
        note(f"request {request_id} had ended before: it is {progress.state}")
    if as_json:
        write_json(summary(progress))
    else:
        write_line(progress.state)
    return 0
