"""`fairlane resume`: a paused request goes on."""

from __future__ import annotations

import click

from fairlane.cli.options import home_option, json_option, redis_option


@click.command("resume", short_help="Let a paused request go on.")
@click.argument("request_id", metavar="ID")
@home_option
@json_option
@redis_option
def command(request_id: str, redis: str | None, queue: str | None, as_json: bool) -> int:
    """Let the paused request ID go on, and print its state.

    Exit code 1: the request has ended, is being cancelled or is past its deadline; 3: there is no
    such request.
    """
    from fairlane.cli.commands.pause import change

    return change(request_id, redis, queue, "active", as_json=as_json)
