"""`fairlane queue`: the settings of a whole queue."""

from __future__ import annotations

from typing import Any

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import write_json, write_line
from fairlane.errors import InvalidArgument


@click.command("queue", short_help="Show or change the settings of a whole queue.")
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
def command(
    redis: str | None, queue: str, max_waiting: int | None, shards: int | None, as_json: bool
) -> int:
    """Show a queue's settings, or set its bound on waiting sub-requests or its shards.

    Each shard is on a primary of its own, as far as there are enough primaries. Workers use a
    change within a second, and waiting work is moved. After the cluster was resharded, run the
    same command again: it chooses the shards anew.
    """
    from fairlane.operations.create.admission import MOST, read_bounds
    from fairlane.operations.lease.shards import read_shards

    if max_waiting is not None and not 0 <= max_waiting <= MOST:
        raise InvalidArgument(
            f"--max-waiting {max_waiting} is not valid: a whole number from 0 (no bound) "
            f"to {MOST:,} is expected"
        )
    with open_queue(redis, queue) as opened:
        if max_waiting is not None:
            opened.set_max_waiting(max_waiting)
        if shards is not None:
            opened.set_shards(shards)
        bounds = opened.driver.run(read_bounds(queue))
        spread = opened.driver.run(read_shards(queue))
    has_bound = bounds.max_waiting > 0
    found = {
        "queue": queue,
        "max_waiting": bounds.max_waiting if has_bound else None,
        "waiting": bounds.waiting if has_bound else None,
        "shards": list(spread.present.numbers),
        "moving_from": list(spread.left.numbers),
    }
    if as_json:
        write_json(found)
    else:
        write_line(f"{'queue':<9} {queue}")
        write_line(f"{'waiting':<9} {as_words(found)}")
        write_line(f"{'shards':<9} {_shards_as_words(found)}")
    return 0


def _shards_as_words(found: dict[str, Any]) -> str:
    shards, left = found["shards"], found["moving_from"]
    shown = f"{len(shards)}: {', '.join(map(str, shards))}" if shards else "none, one slot"
    return f"{shown}; requests are being moved there" if left else shown


def as_words(found: dict[str, Any]) -> str:
    """Returns the bound and the last count, in words."""
    if not found["max_waiting"]:
        return "any number of sub-requests"
    return f"{found['waiting']:,} of at most {found['max_waiting']:,} sub-requests"
