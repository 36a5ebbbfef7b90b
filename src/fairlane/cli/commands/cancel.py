"""`fairlane cancel`: nothing more of one request, or of many, starts."""

from __future__ import annotations

import os
from typing import Any

import click

from fairlane.cli.options import open_request
from fairlane.cli.output import note, write_json, write_line
from fairlane.cli.selection import CODES, Wish, change_many, control_options


@click.command(
    "cancel",
    short_help="Cancel requests: nothing more of them starts.",
    help="Cancel the request ID and print its state: cancelling while workers or programs "
    f"still hold some of it. Or cancel many requests and print how many.\n\n{CODES}",
)
@control_options()
@click.option(
    "--reason", default="cancelled by the caller", show_default=True, help="Kept with the request."
)
def command(reason: str, **given: Any) -> int:
    """Cancel one request or many."""
    from fairlane import Change

    wish = Wish.of(**given)
    reason = os.fsencode(reason).decode("utf-8", "replace")
    if wish.only:
        return _cancel(wish, wish.only, reason)
    return change_many(Change.cancel(reason), wish)


def _cancel(wish: Wish, request_id: str, reason: str) -> int:
    from fairlane.cli.exit_status import summary

    with open_request(wish.redis, wish.queue, request_id) as request:
        before = request.progress()
        request.cancel(reason)
        progress = request.progress()
    if before.ended:
        note(f"request {request_id} had ended before: it is {progress.state}")
    if wish.as_json:
        write_json(summary(progress))
    else:
        write_line(progress.state)
    return 0
