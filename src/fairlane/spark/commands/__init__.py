"""`fairlane spark`: moves big data in and out of a queue with Spark."""

from __future__ import annotations

import click

from fairlane.cli.program import Commands

# In the order of the data's way; each is a file of this folder, imported when it is called.
COMMANDS = ("submit", "work", "stop", "collect")


@click.group(
    "spark",
    cls=Commands,
    names=COMMANDS,
    package=__name__,
    short_help="Data too big for one machine: submit, work, collect.",
)
def command() -> None:
    """Data too big for one machine: submit, work and collect with Spark.

    Needs Java 17 or newer and the extra spark: pip install '.[spark]' in a clone. Runs on this
    machine's cores unless --master or spark-submit names a cluster.
    """
