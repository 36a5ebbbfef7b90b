"""`fairlane queue`: what holds for a whole queue."""

from __future__ import annotations

from typing import Any

import click

from ..errors import InvalidArgument
from .options import json_option, open_queue, queue_option, redis_option
from .talk import emit, emit_json


@click.command("queue", short_help="Show or set how much may wait in a queue.")
@queue_option
@click.option(
    "--max-waiting",
    type=int,
    metavar="N",
    help="Refuse submissions while so many sub-requests wait; 0 = no bound.",
)
@json_option
@redis_option
def command(redis: str | None, queue: str, max_waiting: int | None, as_json: bool) -> int:
    """Show what holds for a whole queue, or set its bound on waiting sub-requests."""
    from ..operations.bounds import MOST, read_bounds

    if max_waiting is not None and not 0 <= max_waiting <= MOST:
        raise InvalidArgument(
            f"--max-waiting {max_waiting} is not valid: a whole number from 0 (no bound) "
            f"to {MOST:,} is expected"
        )
    with open_queue(redis, queue) as opened:
        if max_waiting is not None:
            opened.set_max_waiting(max_waiting)
        bounds = opened.driver.run(read_bounds(queue))
    has_bound = bounds.max_waiting > 0
    found = {
        "queue": queue,
        "max_waiting": bounds.max_waiting if has_bound else None,
        "waiting": bounds.waiting if has_bound else None,
    }
    if as_json:
        emit_json(found)
    else:
        emit(f"{'queue':<9} {queue}")
        emit(f"{'waiting':<9} {as_words(found)}")
    return 0


def as_words(found: dict[str, Any]) -> str:
    """The bound and what was counted last, for people."""
    if not found["max_waiting"]:
        return "any number of sub-requests"
    return f"{found['waiting']:,} of at most {found['max_waiting']:,} sub-requests"
