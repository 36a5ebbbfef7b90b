"""`fairlane spark`: big data in and out of a queue, by way of Spark."""

from __future__ import annotations

from importlib import import_module

import click

# In the order of the data's way; each is a file of this folder, read when it is called.
COMMANDS = ("submit", "work", "stop", "collect", "archive", "report")


class Commands(click.Group):
    """Loads `fairlane spark <name>` from the file of that name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the data's way."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f".{cmd_name}", __package__).command
        return command


@click.group(
    "spark", cls=Commands, short_help="Data too big for one machine: submit, work, collect."
)
def command() -> None:
    """Data too big for one machine: submit, work, collect, archive and report with Spark.

    Needs the extra fairlane[spark] and Java 17 or newer. Runs on this machine's cores unless
    --master or spark-submit names a cluster.
    """
