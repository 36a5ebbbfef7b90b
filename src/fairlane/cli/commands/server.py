"""`fairlane server`: starts, shows and stops the embedded server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option
from fairlane.cli.output import note, write_json, write_line
from fairlane.cli.program import CommandGroup
from fairlane.errors import RequestNotFound

if TYPE_CHECKING:
    from fairlane.embedded import ServerStatus

NOT_RUNNING = "the embedded server is not running"


@click.group(
    "server", cls=CommandGroup, short_help="Start, show and stop your own embedded Redis server."
)
def command() -> None:
    """Start, show and stop your own embedded Redis server.

    Every command without --redis and FAIRLANE_REDIS starts the server if it is not running. The
    newest server program of PATH and of Fairlane's extra `embedded` is used. It keeps running until
    fairlane server stop.
    """


@command.command("start", short_help="Start it unless it runs, and print its URL.")
@json_option
def start(as_json: bool) -> int:
    """Start the embedded server unless it runs, and print its URL."""
    from fairlane.embedded import ensure

    url = ensure()
    if as_json:
        write_json({"url": url, **_facts(_status())})
    else:
        write_line(url)
    return 0


@command.command("status", short_help="Print its version, its memory and its folders.")
@json_option
def status(as_json: bool) -> int:
    """Print the embedded server's version, memory and folders; exit code 3 if it is not running."""
    found = _status()
    if as_json:
        write_json({"running": found is not None, **_facts(found)})
    elif found is not None:
        for name, value in _facts(found).items():
            write_line(f"{name:<12} {value}")
    if found is None:
        note(NOT_RUNNING)
        return RequestNotFound.exit_code
    return 0


@command.command("stop", short_help="Stop it; its data stay on disk.")
def stop() -> int:
    """Stop the embedded server; its data stay on disk."""
    from fairlane.embedded import stop as shut_down

    note("the embedded server has stopped" if shut_down() else NOT_RUNNING)
    return 0


def _status() -> ServerStatus | None:
    from fairlane.embedded import status as ask

    return ask()


def _facts(found: ServerStatus | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "pid": found.pid,
        "version": found.version,
        "socket": str(found.socket),
        "data": str(found.data),
        "memory_bytes": found.used_memory,
        "uptime_s": found.uptime,
    }
