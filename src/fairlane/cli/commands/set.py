"""`fairlane set`: another limit, priority, rate and so on for one request, or for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.options import open_request, time_ms
from fairlane.cli.output import write_json, write_line
from fairlane.cli.selection import CODES, Wish, change_many, control_options
from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from fairlane import Change


@click.command(
    "set",
    short_help="Change the limit, priority, rate and so on of requests.",
    help="Change the request ID while it waits or runs, and print what is now in force. Or change "
    "many requests and print how many.\n\nSlices that workers hold already end first, also above a "
    f"lower limit. Exit code 1: the request has ended. {CODES}",
)
@control_options("--at-priority")
@click.option(
    "--limit", type=int, metavar="N", help="At most N workers at the same time, 1 to 10000."
)
@click.option("--priority", type=int, metavar="P", help="Lane 0 (first) to 99.")
@click.option(
    "--deadline", metavar="TIME",
    help="Nothing starts later than so long from now; 0s = no deadline any more.",
)  # fmt: skip
@click.option("--rate", metavar="N/s", help="At most so many start: 100/s, 30/m or 5/h.")
@click.option("--burst", type=int, metavar="N", help="So many may start together; with --rate.")
@click.option(
    "--weight", type=int, metavar="N", help="Each sub-request counts N times at the rate."
)
@click.option("--share", type=int, metavar="N", help="Its tenant gets N times the time, 1 to 999.")
def command(
    limit: int | None, priority: int | None, deadline: str | None, rate: str | None,
    burst: int | None, weight: int | None, share: int | None, **given: Any,
) -> int:  # fmt: skip
    """Change one request or many."""
    from fairlane import Change

    wish = Wish.of(**given)
    if {limit, priority, deadline, rate, burst, weight, share} == {None}:
        raise InvalidArgument(
            "there is nothing to set: give --limit N, --priority P, --deadline TIME, --rate N/s, "
            "--weight N or --share N"
        )
    seconds = None if deadline is None else time_ms("--deadline", deadline, "0s", "366d") / 1000
    change = Change.set(
        limit=limit,
        priority=priority,
        deadline_s=seconds,
        rate=rate,
        burst=burst,
        weight=weight,
        share=share,
    )
    return _set(wish, wish.only, change) if wish.only else change_many(change, wish)


def _set(wish: Wish, request_id: str, change: Change) -> int:
    from fairlane.cli.exit_status import summary
    from fairlane.common.text import format_duration
    from fairlane.operations.change import set_one

    with open_request(wish.redis, wish.queue, request_id) as request:
        request.queue.driver.run(set_one(request.id, change))
        progress = request.progress()
    if wish.as_json:
        write_json(summary(progress))
        return 0
    line = f"limit {progress.limit}, priority {progress.priority}"
    if change.deadline_ms:
        line += f", deadline in {format_duration(change.deadline_ms)}"
    elif change.deadline_ms == 0:
        line += ", no deadline"
    if change.share is not None:
        line += f", share {progress.share} of tenant {progress.tenant}"
    if change.rate is not None or change.weight is not None:
        line += f", rate {', '.join(rate.words for rate in progress.rates)}"
    write_line(line)
    return 0
