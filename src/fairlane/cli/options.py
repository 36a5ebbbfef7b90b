"""Options that several commands share."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlane import settings
from fairlane.cli.output import note
from fairlane.common.text import format_duration
from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.model import ENDED, OUTCOMES, RUNNING, STATE_GROUPS
from fairlane.options_table import (
    BY_NAME,
    CHOICE,
    FLAG,
    KEY,
    LIMITS,
    NAMES,
    OPTIONS,
    TASKS,
    WHOLE,
    Option,
    options_of,
    range_text,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fairlane.model import DeadFilters, RequestFilters
    from fairlane.option_types import RequestOptions
    from fairlane.options import Policy
    from fairlane.queue import Queue
    from fairlane.request import Request


F = TypeVar("F", bound=Callable[..., Any])
# Shells complete it to the name of a file; the command itself reports what it cannot open.
FILE = click.Path(readable=False)
MOST_ROWS = 1_000  # of one page of a list
LONGEST_TIMEOUT_MS = 366 * 86_400_000


def redis_option(function: F) -> F:
    """`--redis URL`."""
    text = (
        "redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://  "
        "[default: $FAIRLANE_REDIS, else the embedded server]"
    )
    return click.option("--redis", metavar="URL", help=text)(function)


def log_format_option(function: F) -> F:
    """`--log-format text|json` of a command that logs for as long as it runs."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Lines for people, or one JSON object a line.",
    )(function)


def queue_option(function: F) -> F:
    """`--queue NAME`."""
    text = f"The queue's name.  [default: {settings.DEFAULT_QUEUE}]"
    return click.option("--queue", metavar="NAME", default=settings.DEFAULT_QUEUE, help=text)(
        function
    )


def home_option(function: F) -> F:
    """`--queue NAME` of a command for one request, whose id is unique across queues."""
    text = "The queue that the request must be in.  [default: any]"
    return click.option("--queue", metavar="NAME", help=text)(function)


def any_or_home_option(function: F) -> F:
    """`--queue NAME` of a command for a queue or, with ID, for one request."""
    text = "The queue's name; with ID, the queue that the request must be in.  [default: {}; any]"
    text = text.format(settings.DEFAULT_QUEUE)
    return click.option("--queue", metavar="NAME", help=text)(function)


def json_option(function: F) -> F:
    """`--json`."""
    text = "Print JSON, one value a line."
    return click.option("--json", "as_json", is_flag=True, help=text)(function)


def limit_option(default: int) -> Callable[[F], F]:
    """`--limit N` of a list."""
    return click.option(
        "--limit",
        type=click.IntRange(1, MOST_ROWS),
        metavar="N",
        default=default,
        help=f"The most rows, up to {MOST_ROWS:,}.  [default: {default}]",
    )


def after_option(function: F) -> F:
    """`--after CURSOR` of a list."""
    text = "Continue behind the page that ended with this cursor."
    return click.option("--after", metavar="CURSOR", default="", help=text)(function)


def timeout_option(function: F) -> F:
    """`--timeout S`."""
    text = (
        "Stop waiting after so many seconds (or 500ms, 5m) with exit code 4; the request goes on."
    )
    return click.option("--timeout", metavar="S", help=text)(function)


def open_queue(redis: str | None, name: str | None = None, *, check: bool = True) -> Queue:
    """Returns the queue on a Redis, after a check that the server is fit. Raises RedisError.

    It waits for a Redis that is not there yet. Unless `check` is set, nothing is sent yet.
    """
    from fairlane.cli.driver import CommandDriver
    from fairlane.protocol.keys import check_name
    from fairlane.queue import Queue

    name = check_name("queue", settings.DEFAULT_QUEUE if name is None else name)
    try:
        driver = CommandDriver(url_of(redis))
    except InvalidArgument as error:
        source = " (of FAIRLANE_REDIS)" if redis is None else ""
        raise InvalidArgument(f"{error}{source}") from None
    queue = Queue(driver, name)
    if check:
        driver.greet(name)
    return queue


@contextlib.contextmanager
def open_request(redis: str | None, queue: str | None, request_id: str) -> Iterator[Request]:
    """Yields the request, which is looked up only to compare `queue` with its own.

    Raises InvalidArgument, RedisError, RequestNotFound.
    """
    from fairlane.protocol.keys import check_name

    check_name("request id", request_id)
    with open_queue(redis, queue) as opened:
        request = opened.request(request_id)
        if queue is not None and (home := request.progress().queue) != queue:
            raise RequestNotFound(
                f"request {request_id} is in queue {home}, not in queue {queue}: "
                f"give --queue {home}, or leave it out"
            )
        yield request


def url_of(redis: str | None) -> str:
    """Returns the URL named, or that of the embedded server, which a notice names."""
    from fairlane.default_redis import resolve_url

    url = resolve_url(redis)
    if settings.redis_url(redis) is None:
        from fairlane.embedded import is_first_use_today

        if is_first_use_today():
            note("uses your embedded Redis server; --redis URL names another")
    return url


def time_ms(name: str, text: str, low: str, high: str, why: str = "") -> int:
    """Returns an option's duration in ms, from `low` to `high`. Raises InvalidArgument."""
    found = read_duration(name, text)
    if not found and low != "0s":
        raise InvalidArgument(f"{name} {text} is no time: a time such as 30s is expected")
    _within(name, text, found, low, high, why)
    return found


def time_limit_ms(text: str) -> int:
    """Returns `--time-limit` in ms. Raises InvalidArgument."""
    return time_ms("--time-limit", text, "1ms", "24h")


def read_duration(name: str, text: str) -> int:
    """Returns an option's duration in ms. Raises InvalidArgument."""
    try:
        return settings.duration_ms(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def _within(name: str, text: str, ms: int, low: str, high: str, why: str = "") -> None:
    if not settings.duration_ms(low) <= ms <= settings.duration_ms(high):
        raise InvalidArgument(
            f"{name} {text} is not valid: a time from {low} to {high} is expected{why}"
        )


def timeout_s(text: str | None) -> float | None:
    """Returns `--timeout` in seconds. Raises InvalidArgument."""
    if text is None:
        return None
    found = read_duration("--timeout", text)
    if found > LONGEST_TIMEOUT_MS:
        raise InvalidArgument(
            f"--timeout {text} is more than a year: leave it out to wait without an end"
        )
    return found / 1000


# ------------------------------------------------------------------ request options
# The options of a request on the command line, made of the table of options.


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
    if option.kind == TASKS:
        words |= {"multiple": True, "metavar": "NAME"}
    if option.kind == LIMITS:
        words |= {"multiple": True, "metavar": "NAME=LIMIT"}
    return click.option(flag_of(option), option.name, **words)


def flag_of(option: Option) -> str:
    """Returns the option as it is written: `--time-limit`; several names are given one by one."""
    if option.kind == LIMITS:
        return f"--{option.unit}"
    name = option.name.removesuffix("s") if option.kind == NAMES else option.name
    return "--" + name.replace("_", "-")


def _help(option: Option, *, defaults: bool) -> str:
    extra = [range_text(option)] if option.kind not in {CHOICE, NAMES, LIMITS} else []
    if option.kind in {NAMES, LIMITS, TASKS}:
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
        is_only = isinstance(value, tuple) and BY_NAME[name].kind == TASKS and len(value) == 1
        found[name] = value[0] if is_only else value
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


# ------------------------------------------------------------------ filters
# The filters of `fairlane list`, which the commands that change many requests share.


STATES = (*STATE_GROUPS, *RUNNING, *OUTCOMES, *ENDED)
_RANGE = re.compile(r"(\d{1,3})(?:\.\.(\d{1,3}))?")


def filter_options(priority: str = "--priority") -> Callable[[F], F]:
    """`--state`, `--priority` (or another name for it), `--older`, `--newer`, `--id` and so on."""
    options = (
        click.option(
            "--state", "states", type=click.Choice(STATES), multiple=True, metavar="STATE",
            help=f"Only requests in this state; may be repeated: {', '.join(STATES)}. "
            "failed, partly_failed and repaired are some of those that are done.",
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
        click.option("--task", "tasks", multiple=True, metavar="NAME",
                     help="Only requests with calls of this task; may be repeated."),
    )  # fmt: skip

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


TASK_HELP = "Those that call this task; may be repeated."


def dead_filters(function: F) -> F:
    """`--fingerprint`, `--error`, `--since` and `--until` of dead sub-requests."""
    options = (
        click.option("--fingerprint", "fingerprints", multiple=True, metavar="F",
                     help="Those with this fingerprint (see dead list); may be repeated."),
        click.option("--error", metavar="TEXT",
                     help="Those whose error has this text, in letters of any case."),
        click.option("--since", metavar="TIME",
                     help="Those that died since then: `10m` (so long ago), 2026-11-23T10:00Z, or "
                     "`release`: since the newest release of your code."),
        click.option("--until", metavar="TIME", help="Those that died before."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def dead_filters_of(given: dict[str, Any]) -> DeadFilters:
    """Takes the filters of dead sub-requests out of a command's options.

    `--task` is one of them, because a request may have calls of several tasks.
    """
    names = {"tasks": "task", "fingerprints": "fingerprint", "error": "error"}
    names |= {"since": "since", "until": "until"}
    found = {name: given.pop(option) for option, name in names.items()}
    given["tasks"] = ()  # no filter of requests
    return {name: one for name, one in found.items() if one not in (None, ())}  # type: ignore[return-value]


def filters_of(given: dict[str, Any]) -> RequestFilters:
    """Takes the filters out of a command's options. Raises InvalidArgument."""
    older, newer = given.pop("older"), given.pop("newer")
    names = ("states", "priorities", "id_prefix", "tags", "tenants", "tasks")
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
