"""`fairlane queue`: shows, sets, limits, pauses and resumes a whole queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option, time_ms
from fairlane.cli.output import note, note_unknown, until_words, write_json, write_line
from fairlane.cli.program import CommandGroup
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane.queue import Queue


@click.group("queue", cls=CommandGroup, short_help="Show, set, pause or resume a whole queue.")
def command() -> None:
    """Show a queue's settings, set them, limit its rate, or pause and resume the queue."""


@command.command("show", short_help="Show the settings of a queue.")
@queue_option
@json_option
@redis_option
def show(redis: str | None, queue: str, as_json: bool) -> int:
    """Show a queue's bound on what waits, its shards, its rate, and whether it is paused."""
    with open_queue(redis, queue) as opened:
        _show(opened, as_json=as_json)
    return 0


@command.command("set", short_help="Set a queue's bound on what waits, or its shards.")
@queue_option
@click.option(
    "--max-waiting",
    type=int,
    metavar="N",
    help="Refuse submissions while N sub-requests wait; 0 = no bound.",
)
@click.option(
    "--shards",
    type=int,
    metavar="N",
    help="Spread the lanes over N hash slots of a cluster; 0 = one slot, the default.",
)
@json_option
@redis_option
def set_(
    redis: str | None, queue: str, max_waiting: int | None, shards: int | None, as_json: bool
) -> int:
    """Set a queue's bound on waiting sub-requests or its shards, and show its settings.

    Each shard is on a primary of its own, as far as there are enough primaries. Workers use a
    change within a second, and waiting work is moved. After the cluster was resharded, run the
    same command again: it chooses the shards anew.
    """
    from fairlane.operations.admission import MOST
    from fairlane.operations.shards import check_count

    if max_waiting is None and shards is None:
        raise InvalidArgument("nothing to set: name --max-waiting or --shards")
    if max_waiting is not None and not 0 <= max_waiting <= MOST:
        raise InvalidArgument(
            f"--max-waiting {max_waiting} is not valid: a whole number from 0 (no bound) "
            f"to {MOST:,} is expected"
        )
    if shards is not None:
        check_count(shards)
    with open_queue(redis, queue) as opened:
        if max_waiting is not None:
            opened.set_max_waiting(max_waiting)
        if shards is not None:
            opened.set_shards(shards)
        _show(opened, as_json=as_json)
    return 0


@command.command("rate", short_help="Let at most so many sub-requests start in a time.")
@click.argument("rate", metavar="RATE|off")
@click.option(
    "--burst",
    type=int,
    metavar="N",
    help="Let N start together after a pause.  [default: what the rate allows in 0.1 s]",
)
@queue_option
@json_option
@redis_option
def rate(redis: str | None, queue: str, rate: str, burst: int | None, as_json: bool) -> int:
    """Give a queue a RATE, as 100/s, 30/m or 5/h, or remove it with `off`.

    It holds for all sub-requests and all workers of the queue together. Every worker uses a change
    within a second or two. A request with a rate of its own obeys both.
    """
    from fairlane.operations.rates import check_queue_rate

    wanted = None if rate == "off" else rate
    check_queue_rate(wanted, burst)
    with open_queue(redis, queue) as opened:
        opened.set_rate(wanted, burst)
        _show(opened, as_json=as_json)
    return 0


@command.command("pause", short_help="Let workers finish what they hold and take nothing more.")
@queue_option
@click.option(
    "--for",
    "for_",
    metavar="TIME",
    help="Resume after this time, as 10m or 2h, at most 365d.  [default: fairlane queue resume]",
)
@json_option
@redis_option
def pause(redis: str | None, queue: str, for_: str | None, as_json: bool) -> int:
    """Pause a queue: what runs ends, nothing more of it starts, and submissions go on.

    Every worker uses the change within a second. Other queues go on.
    """
    for_s = None
    if for_ is not None:
        for_s = time_ms("--for", for_, "1ms", "365d") / 1000
    with open_queue(redis, queue) as opened:
        note_unknown(opened)
        found = opened.pause(for_s=for_s)
    if as_json:
        write_json({"queue": queue, "is_paused": True, "paused_until_ms": found.until_ms})
    else:
        write_line(f"queue {queue} is {found.text}")
    return 0


@command.command("resume", short_help="Let workers take from a paused queue again.")
@queue_option
@json_option
@redis_option
def resume(redis: str | None, queue: str, as_json: bool) -> int:
    """Resume a queue; workers take from it within a second. Fine if it is not paused."""
    with open_queue(redis, queue) as opened:
        was_paused = opened.resume()
        if not was_paused:
            note_unknown(opened)
    if as_json:
        write_json({"queue": queue, "is_paused": False, "was_paused": was_paused})
    elif was_paused:
        write_line(f"queue {queue} is resumed")
    else:
        note(f"queue {queue} was not paused")
    return 0


def _show(opened: Queue, *, as_json: bool) -> None:
    from fairlane.operations.admission import read_bounds
    from fairlane.operations.pause import read_pause
    from fairlane.operations.rates import read_queue_rate
    from fairlane.operations.shards import read_shards

    bounds = opened.driver.run(read_bounds(opened.name))
    spread = opened.driver.run(read_shards(opened.name))
    pause = opened.driver.run(read_pause(opened.name))
    rate = opened.driver.run(read_queue_rate(opened.name))
    has_bound = bounds.max_waiting > 0
    found: dict[str, Any] = {
        "queue": opened.name,
        "max_waiting": bounds.max_waiting if has_bound else None,
        "waiting": bounds.waiting if has_bound else None,
        "shards": list(spread.present.numbers),
        "moving_from": list(spread.left.numbers),
        "is_paused": pause.is_paused,
        "paused_until_ms": pause.until_ms,
        "rate": rate.words if rate else None,
    }
    if as_json:
        write_json(found)
        return
    write_line(f"{'queue':<9} {opened.name}")
    write_line(f"{'waiting':<9} {as_words(found['max_waiting'], found['waiting'])}")
    write_line(f"{'shards':<9} {_shards_as_words(found)}")
    if pause.is_paused:
        write_line(f"{'paused':<9} {until_words(opened.name, pause.until_ms)}")
    if rate:
        write_line(f"{'rate':<9} {rate.words}")


def _shards_as_words(found: dict[str, Any]) -> str:
    shards, left = found["shards"], found["moving_from"]
    shown = f"{len(shards)}: {', '.join(map(str, shards))}" if shards else "none, one slot"
    return f"{shown}; requests are being moved there" if left else shown


def as_words(max_waiting: int | None, waiting: int | None) -> str:
    """Returns the bound and the last count, in words."""
    if not max_waiting:
        return "any number of sub-requests"
    return f"{waiting or 0:,} of at most {max_waiting:,} sub-requests"
