"""The commands that change requests: pause, resume, set, cancel, delete."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import click

from fairlane.cli.options import open_request
from fairlane.cli.output import note, write_json, write_line
from fairlane.cli.request_options import OF_CHANGE, read_options, request_options
from fairlane.cli.selection import CODES, Wish, change_many, control_options
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane import Change
    from fairlane.option_types import ChangeOptions


# ------------------------------------------------------------------ pause and resume


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

    with open_request(wish.redis, wish.queue, request_id) as request:
        state = request.pause() if wanted == "paused" else request.resume()
        progress = request.progress()
    if wish.as_json:
        write_json(progress)
    else:
        write_line(progress.state)
    if state == wanted:
        return 0
    way = "being cancelled" if state == "cancelling" else "past its deadline"
    note(f"request {request_id} is {way}: it stays {state}")
    return 1


pause = switch(
    "pause",
    "paused",
    "Pause requests: what runs ends, nothing more starts.",
    "Pause the request ID until fairlane resume ID",
)


resume = switch("resume", "active", "Let paused requests go on.", "Let the paused request ID go on")


# ------------------------------------------------------------------ set


@click.command(
    "set",
    short_help="Change the limit, priority, rate and so on of requests.",
    help="Change the request ID while it waits or runs, and print what is now in force. Or change "
    "many requests and print how many.\n\nSlices that workers hold already end first, also above a "
    f"lower limit. Exit code 1: the request has ended. {CODES}",
)
@control_options("--at-priority")
@request_options(OF_CHANGE, defaults=False)
def set_(**given: Any) -> int:
    """Change one request or many."""
    from fairlane import Change

    wanted = {option.name: given.pop(option.name) for option in OF_CHANGE}
    wish = Wish.of(**given)
    if set(wanted.values()) == {None}:
        raise InvalidArgument(
            "there is nothing to set: give --limit N, --priority P, --deadline TIME, --rate N/s, "
            "--weight N or --share N"
        )
    change = Change.set(**cast("ChangeOptions", read_options(wanted)))
    return _set(wish, wish.only, change) if wish.only else change_many(change, wish)


def _set(wish: Wish, request_id: str, change: Change) -> int:
    from fairlane.common.text import format_duration
    from fairlane.operations.change import set_one

    with open_request(wish.redis, wish.queue, request_id) as request:
        request.queue.driver.run(set_one(request.id, change))
        progress = request.progress()
    if wish.as_json:
        write_json(progress)
        return 0
    line = f"limit {progress.limit}, priority {progress.priority}"
    if change.deadline_ms:
        line += f", deadline in {format_duration(change.deadline_ms)}"
    elif change.deadline_ms == 0:
        line += ", no deadline"
    if change.share is not None:
        line += f", share {progress.share} of tenant {progress.tenant}"
    if change.rate is not None or change.weight is not None:
        line += f", rate {', '.join(progress.rates)}"
    write_line(line)
    return 0


# ------------------------------------------------------------------ cancel


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
def cancel(reason: str, **given: Any) -> int:
    """Cancel one request or many."""
    from fairlane import Change

    wish = Wish.of(**given)
    reason = os.fsencode(reason).decode("utf-8", "replace")
    if wish.only:
        return _cancel(wish, wish.only, reason)
    return change_many(Change.cancel(reason), wish)


def _cancel(wish: Wish, request_id: str, reason: str) -> int:

    with open_request(wish.redis, wish.queue, request_id) as request:
        before = request.progress()
        request.cancel(reason)
        progress = request.progress()
    if before.ended:
        note(f"request {request_id} had ended before: it is {progress.state}")
    if wish.as_json:
        write_json(progress)
    else:
        write_line(progress.state)
    return 0


# ------------------------------------------------------------------ delete


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
def delete(cancel: bool, **given: Any) -> int:
    """Delete one request or many."""
    from fairlane import Change

    return change_many(Change.delete(cancel=cancel), Wish.of(**given))
