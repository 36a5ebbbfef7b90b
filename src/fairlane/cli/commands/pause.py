"""`fairlane pause`: nothing more of a request starts until it is resumed."""

from __future__ import annotations

import click

from fairlane.cli.options import home_option, json_option, open_request, redis_option
from fairlane.cli.output import note, write_json, write_line


@click.command("pause", short_help="Pause a request: what runs ends, nothing more starts.")
@click.argument("request_id", metavar="ID")
@home_option
@json_option
@redis_option
def command(request_id: str, redis: str | None, queue: str | None, as_json: bool) -> int:
    """Pause the request ID until fairlane resume ID, and print its state.

    Exit code 1: the request has ended, is being cancelled or is past its deadline; 3: there is no
    such request.
    """
    return change(request_id, redis, queue, "paused", as_json=as_json)


def change(
    request_id: str, redis: str | None, queue: str | None, wanted: str, *, as_json: bool
) -> int:
    """Pauses or resumes and prints the state; 1 when that is not the one wanted."""
    from fairlane.cli.exit_status import summary

    with open_request(redis, queue, request_id) as request:
        state = request.pause() if wanted == "paused" else request.resume()
        progress = request.progress()
    if as_json:
        write_json(summary(progress))
    else:
        write_line(progress.state)
    if state == wanted:
        return 0
    way = "being cancelled" if state == "cancelling" else "past its deadline"
    note(f"request {request_id} is {way}: it stays {state}")
    return 1
