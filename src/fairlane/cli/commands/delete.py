"""`fairlane delete`: ended requests go, with their results, before their retention is over."""

from __future__ import annotations

from typing import Any

import click

from fairlane.cli.selection import CODES, Wish, change_many, control_options


@click.command(
    "delete",
    short_help="Delete ended requests with their results.",
    help="Delete ended requests with their results and dead sub-requests, and print how many. "
    f"Their ids are free again; the completion log keeps their endings.\n\n{CODES}",
)
@control_options()
@click.option(
    "--cancel", is_flag=True,
    help="Cancel requests first that have not ended, and delete those that end immediately.",
)  # fmt: skip
def command(cancel: bool, **given: Any) -> int:
    """Delete one request or many."""
    from fairlane import Change

    return change_many(Change.delete(cancel=cancel), Wish.of(**given))
