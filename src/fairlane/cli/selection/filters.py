"""The filters of `fairlane list`, which the commands that change many requests share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from fairlane.cli.options import time_ms
from fairlane.errors import InvalidArgument
from fairlane.found import ENDED, RUNNING, STATE_GROUPS, RequestFilters

F = TypeVar("F", bound=Callable[..., Any])
STATES = (*STATE_GROUPS, *RUNNING, *ENDED)
_RANGE = re.compile(r"(\d{1,3})(?:\.\.(\d{1,3}))?")


def filter_options(priority: str = "--priority") -> Callable[[F], F]:
    """`--state`, `--priority` (or another name for it), `--older`, `--newer`, `--id` and so on."""
    options = (
        click.option(
            "--state", "states", type=click.Choice(STATES), multiple=True, metavar="STATE",
            help=f"Only requests in this state; may be repeated: {', '.join(STATES)}.",
        ),
        click.option(
            priority, "priorities", multiple=True, metavar="N..M", callback=_priorities,
            help="Only requests of this priority, 0 to 99, or of a range such as 5..9; "
            "may be repeated.",
        ),
        click.option("--older", metavar="TIME",
                     help="Only requests submitted at least so long ago: 10m."),
        click.option("--newer", metavar="TIME",
                     help="Only requests submitted less than so long ago: 1h."),
        click.option("--id", "id_prefix", metavar="PREFIX", default="",
                     help="Only ids that begin so."),
        click.option("--tag", "tags", multiple=True, metavar="TAG",
                     help="Only requests with this tag; if repeated, with all of them."),
        click.option("--tenant", "tenants", multiple=True, metavar="NAME",
                     help="Only requests of this tenant; may be repeated."),
    )  # fmt: skip

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def filters_of(given: dict[str, Any]) -> RequestFilters:
    """Takes the filters out of a command's options. Raises InvalidArgument."""
    older, newer = given.pop("older"), given.pop("newer")
    names = ("states", "priorities", "id_prefix", "tags", "tenants")
    filters: RequestFilters = {name: given.pop(name) for name in names}  # type: ignore[assignment]
    if older is not None:
        filters["older_s"] = time_ms("--older", older, "0s", "366d") / 1000
    if newer is not None:
        filters["newer_s"] = time_ms("--newer", newer, "1ms", "366d") / 1000
    return filters


def _priorities(
    _: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[int, ...]:
    from fairlane.protocol.keys import LANES

    found = list[int]()
    for text in texts:
        match = _RANGE.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < LANES:
            raise InvalidArgument(
                f"{option.opts[0]} {text} is not valid: a number from 0 to 99, or a range such as "
                "5..9, is expected"
            )
        found += range(first, last + 1)
    return tuple(found)
