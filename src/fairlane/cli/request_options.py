"""The options of a request on the command line, made of the table of options."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlane.cli.output import note
from fairlane.common.text import format_duration
from fairlane.errors import InvalidArgument
from fairlane.options_table import (
    BY_NAME,
    CHOICE,
    FLAG,
    KEY,
    NAMES,
    OPTIONS,
    WHOLE,
    Option,
    options_of,
    range_text,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlane.option_types import RequestOptions
    from fairlane.options import Policy

    F = TypeVar("F", bound=Callable[..., Any])


_PAST_MS = 2_000  # a time that was read from a clock just now is not in the past
_METAVARS = {"whole": "N", "duration": "TIME", "pause": "TIME", "moment": "TIME"}
OF_REQUEST = OPTIONS
OF_SCHEDULE = options_of("schedule")
OF_CHANGE = options_of("set")


def request_options(options: Iterable[Option], *, defaults: bool = True) -> Callable[[F], F]:
    """Returns what adds these options to a command; `defaults` are those of a new request."""

    def add(command: F) -> F:
        for option in reversed([*options]):
            command = click_option(option, defaults=defaults)(command)
        return command

    return add


def click_option(option: Option, *, defaults: bool = True) -> Callable[[F], F]:
    """Returns what adds an option to a command."""
    words: dict[str, Any] = {"help": _help(option, defaults=defaults)}
    if option.kind in {FLAG, KEY}:
        words |= {"is_flag": True, "default": None}
    elif option.kind == CHOICE:
        words["type"] = click.Choice(option.most)
    else:
        words["metavar"] = _METAVARS.get(option.kind, option.kind.upper())
    if option.kind == WHOLE:
        words["type"] = int
    if option.kind == NAMES:
        words |= {"multiple": True, "metavar": option.unit.split()[-1].upper()}
    return click.option(flag_of(option), option.name, **words)


def flag_of(option: Option) -> str:
    """Returns the option as it is written: `--time-limit`; several names are given one by one."""
    name = option.name.removesuffix("s") if option.kind == NAMES else option.name
    return "--" + name.replace("_", "-")


def _help(option: Option, *, defaults: bool) -> str:
    extra = [range_text(option)] if option.kind not in {CHOICE, NAMES} else []
    if option.kind == NAMES:
        extra.append("may be repeated")
    if defaults and option.default is not None:
        extra.append(f"default: {shown(option.default)}")
    extra = [*filter(None, extra)]
    return option.sentence + (f"  [{'; '.join(extra)}]" if extra else "")


def read_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that a person gave, as Queue.submit_request takes them.

    Raises InvalidArgument, which names the option as it is written.
    """
    from fairlane.options import read_option

    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value == ():
            continue
        found[name] = value
        read = read_option(name, value, flag_of(BY_NAME[name]))
        if name == "run_at":
            _note_past(value, read)
    return found


def checked_policy(queue: str, options: RequestOptions) -> Policy:
    """Returns the policy of these options. Raises InvalidArgument, which names them as written."""
    from fairlane.options import policy_of

    try:
        return policy_of(queue, **options)
    except InvalidArgument as error:
        named = "|".join(sorted(name for name in BY_NAME if "_" in name))
        text = re.sub(rf"\b({named})\b", lambda match: flag_of(BY_NAME[match[1]]), str(error))
        raise type(error)(text) from None


def _note_past(run_at: str, at_ms: int) -> None:
    """Reports a start that is over: the request starts now."""
    past_ms = round(time.time() * 1000) - at_ms
    if past_ms > _PAST_MS:
        gone = format_duration(past_ms)
        note(f"--run-at {run_at} is in the past ({gone} ago): the request may start now")
