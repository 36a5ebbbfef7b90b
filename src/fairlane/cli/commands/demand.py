"""`fairlane demand`: how much work could start now, for autoscaling."""

from __future__ import annotations

import click

from fairlane.cli.options import json_option, open_queue, queue_option, redis_option
from fairlane.cli.output import write_json, write_line
from fairlane.common.text import plural


@click.command("demand", short_help="Print how much waits, and how many more leases could start.")
@queue_option
@json_option
@redis_option
def command(redis: str | None, queue: str, as_json: bool) -> int:
    """Print how much waits in a queue, and how many more leases workers could take from it now.

    The second number is a signal for autoscaling. Each request counts with its free permits or
    its ready sub-requests, whichever is less. Requests that are paused, delayed, cancelled or
    held up by a rate do not count, nor do stale tokens. With --json, `held` is how many leases
    workers have, and `wanted` is `demand` plus `held`.
    """
    with open_queue(redis, queue) as opened:
        found = opened.demand()
    if as_json:
        write_json(found)
    else:
        write_line(f"waiting   {found.backlog.words}")
        write_line(f"demand    {plural(found.demand, 'more lease')} could start")
    return 0
