"""The options of `rq-submit` that become options of the request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from fairlane import settings
from fairlane.cli.options import range_ms, time_limit_ms, time_ms
from fairlane.cli.output import note
from fairlane.common.clock import moment_ms
from fairlane.common.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.options import RequestOptions

    F = TypeVar("F", bound=Callable[..., Any])


_PAST_MS = 2_000  # a time that was read from a clock just now is not in the past
_RANGE = "{}..{}".format(*(f"{ms // 1000}s" for ms in settings.DEFAULT_BACKOFF_MS))
_OPTIONS = (
    click.option(
        "--priority",
        type=int,
        default=settings.DEFAULT_PRIORITY,
        show_default=True,
        help="Lane 0 (first) to 99.",
    ),
    click.option(
        "--limit",
        type=int,
        help=f"At most so many workers at the same time.  [default: {settings.DEFAULT_LIMIT}]",
    ),
    click.option(
        "--attempts",
        type=int,
        default=settings.DEFAULT_ATTEMPTS,
        show_default=True,
        help="Deliveries of a sub-request until it is dead.",
    ),
    click.option(
        "--backoff",
        metavar="TIME",
        default=_RANGE,
        show_default=True,
        help="Pause before another attempt, shortest..longest; 1s means 1s..1s.",
    ),
    click.option(
        "--lease",
        metavar="TIME",
        default="30s",
        show_default=True,
        help="How long a worker that sends no heartbeat keeps its work.",
    ),
    click.option(
        "--retain",
        metavar="TIME",
        default="24h",
        show_default=True,
        help="How long results stay after the end, 0s to 366d; with 0s only the counts.",
    ),
    click.option(
        "--deadline",
        metavar="TIME",
        help="A sub-request that has not started by then is dead, as 10m or 2h.",
    ),
    click.option(
        "--time-limit",
        metavar="TIME",
        help="A handler that takes longer is stopped, and the attempt fails.",
    ),
    click.option("--delay", metavar="TIME", help="Start nothing before this time is over, as 10m."),
    click.option(
        "--run-at",
        metavar="TIME",
        help="Start nothing before this time, as 2026-12-24T18:00+01:00.",
    ),
    click.option(
        "--rate", metavar="RATE", help="Start at most so many in a time: 100/s, 30/m or 5/h."
    ),
    click.option(
        "--burst",
        type=int,
        metavar="N",
        help="After a pause, so many may start together.  [default: what the rate has in 0.1 s]",
    ),
    click.option(
        "--rate-key", metavar="NAME", help="Share the rate with requests of the same key."
    ),
    click.option(
        "--weight", type=int, metavar="N", help="A sub-request counts for N.  [default: 1]"
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        metavar="NAME",
        help="A name for choosing requests; may be repeated.",
    ),
    click.option(
        "--tenant", metavar="NAME", help="The customer or team that the request belongs to."
    ),
    click.option(
        "--share", type=int, metavar="N", help="Time of the tenant beside others.  [default: 1]"
    ),
    click.option(
        "--ageing",
        metavar="TIME",
        help="If nothing of it has started for this time, one slice goes first, as 10m.",
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="ID",
        help="Start when this request is done; may be repeated.",
    ),
    click.option(
        "--after-any-end",
        is_flag=True,
        help="Start when the requests of --after have ended in any way.",
    ),
    click.option(
        "--on-duplicate",
        type=click.Choice(["keep", "replace", "debounce"]),
        help="What to do if --id has another request that runs, or began less than --window ago.",
    ),
    click.option("--window", metavar="TIME", help="See --on-duplicate.  [default: 0s]"),
    click.option(
        "--distinct",
        is_flag=True,
        help="Leave out each line whose own id (a number, meta.id, else its hash) came before.",
    ),
    click.option(
        "--durable",
        type=int,
        default=0,
        metavar="N",
        help="Wait until N replicas have each acknowledged write.  [default: 0]",
    ),
)


def request_options(command: F) -> F:
    """Adds the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_options(
    *, limit: int, backoff: str, lease: str, retain: str, deadline: str | None,
    time_limit: str | None, ageing: str | None, tags: tuple[str, ...], after: tuple[str, ...],
    after_any_end: bool, window: str | None, distinct: bool, **given: Any,
) -> RequestOptions:  # fmt: skip
    """Returns the options as Queue.submit_request takes them. Raises InvalidArgument."""
    low, high = range_ms("--backoff", backoff, "0s", "24h")
    found: dict[str, Any] = {
        "limit": limit,
        "backoff_s": (low / 1000, high / 1000),
        "lease_s": time_ms("--lease", lease, "1s", "24h") / 1000,
        "retain_s": time_ms("--retain", retain, "0s", "366d") / 1000,
        **{name: value for name, value in given.items() if value is not None},
    }
    _note_past(given.get("run_at"))
    if deadline is not None:
        found["deadline_s"] = time_ms("--deadline", deadline, "1ms", "366d") / 1000
    if time_limit is not None:
        found["time_limit_s"] = time_limit_ms(time_limit) / 1000
    if ageing is not None:
        found["ageing_s"] = time_ms("--ageing", ageing, "1s", "24h") / 1000
    if window is not None:
        found["window_s"] = time_ms("--window", window, "0s", "366d") / 1000
    if distinct:
        found["distinct"] = True
    if tags:
        found["tags"] = tags
    if after or after_any_end:
        found |= {"after": after, "after_any_end": after_any_end}
    return cast("RequestOptions", found)


def _note_past(run_at: str | None) -> None:
    """Reports a start that is over: the request starts now. Raises InvalidArgument."""
    if run_at is None:
        return
    past_ms = round(time.time() * 1000) - moment_ms("run_at", run_at)
    if past_ms > _PAST_MS:
        gone = format_duration(past_ms)
        note(f"--run-at {run_at} is in the past ({gone} ago): the request may start now")
