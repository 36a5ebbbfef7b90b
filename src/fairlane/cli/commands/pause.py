"""`fairlane pause`: nothing more of one request, or of many, starts until they are resumed."""

from __future__ import annotations

from typing import Any

import click

from fairlane.cli.options import open_request
from fairlane.cli.output import note, write_json, write_line
from fairlane.cli.selection import CODES, Wish, change_many, control_options


def switch(name: str, wanted: str, short: str, does: str) -> click.Command:
    """Returns the command `name`, which makes requests `wanted`: paused or active."""

    def command(**given: Any) -> int:
        from fairlane import Change

        wish = Wish.of(**given)
        if wish.only:
            return _switch(wish, wish.only, wanted)
        return change_many(Change.pause() if wanted == "paused" else Change.resume(), wish)

    text = (
        f"{does}, and print its state. Or do so with many requests and print how many.\n\n"
        "Exit code 1: the request has ended, is being cancelled or is past its deadline. " + CODES
    )
    return click.command(name, short_help=short, help=text)(control_options()(command))


def _switch(wish: Wish, request_id: str, wanted: str) -> int:
    from fairlane.cli.exit_status import summary

    with open_request(wish.redis, wish.queue, request_id) as request:
        state = request.pause() if wanted == "paused" else request.resume()
        progress = request.progress()
    if wish.as_json:
        write_json(summary(progress))
    else:
        write_line(progress.state)
    if state == wanted:
        return 0
    way = "being cancelled" if state == "cancelling" else "past its deadline"
    note(f"request {request_id} is {way}: it stays {state}")
    return 1


command = switch(
    "pause",
    "paused",
    "Pause requests: what runs ends, nothing more starts.",
    "Pause the request ID until fairlane resume ID",
)
