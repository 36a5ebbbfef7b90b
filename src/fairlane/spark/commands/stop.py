"""`fairlane spark stop`: drains a fleet, from any machine."""

from __future__ import annotations

import click

from fairlane.cli.options import open_queue, queue_option, redis_option
from fairlane.cli.output import note


@click.command("stop", short_help="Let a fleet finish what it holds, and end.")
@click.argument("name", metavar="[NAME]", default="fleet")
@queue_option
@redis_option
def command(name: str, queue: str, redis: str | None) -> int:
    """Let the workers of the fleet NAME finish what they hold and end; needs no Spark."""
    from fairlane.spark.fleet import stop

    with open_queue(redis, queue) as opened:
        opened.driver.run(stop(queue, name))
    note(f"fleet {name} drains: its workers end within a few seconds and what they hold")
    return 0
