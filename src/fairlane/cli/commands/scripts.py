"""`fairlane scripts`: loads the scripts for Redis users that may not load them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, redis_option, time_ms
from fairlane.cli.output import note, write_json, write_line
from fairlane.cli.program import CommandGroup

if TYPE_CHECKING:
    from fairlane.operations.script_loading import ScriptStatus

PATIENCE_S, TIMEOUT_S = 2.0, 4.0  # of one server, as the others wait


@click.group(
    "scripts",
    cls=CommandGroup,
    short_help="Load the scripts onto every server, or check that they are there.",
)
def command() -> None:
    """Load the scripts of this release onto every server, or check that they are there.

    This is needed if the Redis users may not EVAL. Else each script is loaded at its first use.
    """


@command.command("load", short_help="Load them onto every primary and replica.")
@click.option(
    "--watch", "every", metavar="TIME",
    help="Repeat this every TIME, such as 5s: a restart or a failover loses the scripts.",
)  # fmt: skip
@json_option
@redis_option
def load(redis: str | None, every: str | None, as_json: bool) -> int:
    """Load the scripts of this release onto every server: primaries, and replicas, too.

    Print a line for each server. Exit code 1 if a server lacks a script; 5 if none answers.
    """
    from fairlane.common import clock

    url = _url(redis)
    if every is None:
        return _show(_look(url, load=True), as_json=as_json)
    pause_s = time_ms("--watch", every, "100ms", "1h") / 1000
    printed: dict[str, Any] = {}
    while True:
        _watch(url, printed, as_json=as_json)
        clock.sleep(pause_s)


@command.command("verify", short_help="Show which servers lack which scripts.")
@json_option
@redis_option
def verify(redis: str | None, as_json: bool) -> int:
    """Show which scripts of this release each server lacks: primaries, and replicas, too.

    Print a line for each server. Exit code 1 if a server lacks a script; 5 if none answers.
    """
    return _show(_look(_url(redis), load=False), as_json=as_json)


def _url(redis: str | None) -> str:
    from fairlane.cli.options import open_queue

    return open_queue(redis, check=False).driver.url


def _look(url: str, *, load: bool) -> list[ScriptStatus]:
    from fairlane.drivers.sync import driver_of_all
    from fairlane.operations.script_loading import everywhere, look

    driver = driver_of_all(url, patience_s=PATIENCE_S, timeout_s=TIMEOUT_S)
    with contextlib.closing(driver):
        places = driver.run(everywhere(_without_login(driver.place)))
        return [driver.run(look(place, load=load)) for place in places]


def _without_login(place: str) -> str:
    return place.partition("://")[2].partition("?")[0].rpartition("@")[2]


def _watch(url: str, printed: dict[str, Any], *, as_json: bool) -> None:
    """Loads what is missing once; prints the servers whose state has changed."""
    from fairlane.errors import RedisError

    try:
        found = _look(url, load=True)
    except RedisError as error:
        if _is_news(printed, "", str(error)):
            note(f"{error}; looking again")
        return
    known = {one.name for one in found}
    for gone in set(printed) - known:
        del printed[gone]
    for one in found:
        if _is_news(printed, one.name, (one.role, one.missing, one.error)) or one.loaded:
            _print(one, as_json=as_json)


def _is_news(printed: dict[str, Any], name: str, what: Any) -> bool:
    is_news: bool = printed.get(name) != what
    printed[name] = what
    return is_news


def _show(found: list[ScriptStatus], *, as_json: bool) -> int:
    for one in found:
        _print(one, as_json=as_json)
    well = sum(one.is_well for one in found)
    note(f"{well} of {len(found)} servers have every script of this release")
    return 0 if well == len(found) else 1


def _print(one: ScriptStatus, *, as_json: bool) -> None:
    from fairlane.operations.script_loading import count

    if as_json:
        write_json(
            {
                "node": one.name,
                "role": one.role or None,
                "scripts": None if one.error else count() - len(one.missing),
                "loaded": list(one.loaded),
                "missing": list(one.missing),
                "error": one.error or None,
            }
        )
        return
    write_line(f"{one.name:<24}  {one.role or '?':<7}  {_state(one, count())}")


def _state(one: ScriptStatus, count: int) -> str:
    if one.error:
        return f"not known: {one.error}"
    if one.missing:
        return f"{len(one.missing)} of {count} missing: {', '.join(one.missing)}"
    return f"all {count} there" + (f", {len(one.loaded)} loaded now" if one.loaded else "")
