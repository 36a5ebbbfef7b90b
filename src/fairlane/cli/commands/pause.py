"""`fairlane pause`: nothing more of a request starts until it is resumed."""

from __future__ import annotations

import click

from fairlane.cli.options import home_option, json_option, open_request, redis_option
from fairlane.cli.output import note, write_json, write_line


def switch(name: str, wanted: str, short: str, does: str) -> click.Command:
    """Returns the command `name`, which makes a request `wanted`: paused or active."""

    def command(request_id: str, redis: str | None, queue: str | None, as_json: bool) -> int:
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

    text = (
        f"{does}, and print its state.\n\nExit code 1: the request has ended, is being cancelled "
        "or is past its deadline; 3: there is no such request."
    )
    taken = click.argument("request_id", metavar="ID")(
        home_option(json_option(redis_option(command)))
    )
    return click.command(name, short_help=short, help=text)(taken)


command = switch(
    "pause",
    "paused",
    "Pause a request: what runs ends, nothing more starts.",
    "Pause the request ID until fairlane resume ID",
)
