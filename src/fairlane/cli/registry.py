"""The click group: imports a command's file when the command is called, or all for --help."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

PACKAGE = "fairlane.cli.commands"

# In the order of a request's life; each but `spark` is a file of PACKAGE.
COMMANDS = (
    "submit",
    "worker",
    "wait",
    "results",
    "pause",
    "resume",
    "set",
    "cancel",
    "delete",
    "dead",
    "errors",
    "status",
    "why",
    "list",
    "workers",
    "queues",
    "completions",
    "stats",
    "top",
    "demand",
    "queue",
    "schedule",
    "fanout",
    "forward",
    "balance",
    "topic",
    "serve",
    "token",
    "webhook",
    "flow",
    "spark",
    "doctor",
    "scripts",
    "acl",
    "server",
    "completion",
)


# Spark's commands stand with all that needs Spark.
ELSEWHERE = {"spark": "fairlane.spark.commands"}


class Group(click.Group):
    """Suggests the closest names for a mistyped command, as click does for options."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that `args` begin with. Raises UsageError."""
        name = args[0]
        is_unknown = not name.startswith("-") and self.get_command(ctx, name) is None
        if is_unknown and not ctx.resilient_parsing:
            near = self._inside(ctx, name) or get_close_matches(name, self.list_commands(ctx))
            close = " or ".join(near)
            hint = f". Did you mean {close}?" if close else ""
            raise click.UsageError(f"No such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def _inside(self, ctx: click.Context, name: str) -> list[str]:
        """Returns the commands of that name in the groups of this group: `dead requeue`."""
        groups = {outer: self.get_command(ctx, outer) for outer in self.list_commands(ctx)}
        return [
            f"{outer} {name}"
            for outer, group in groups.items()
            if isinstance(group, click.Group) and name in group.list_commands(ctx)
        ]


class Commands(Group):
    """Loads the command `name` from the file of that name in `package`.

    `names`: all commands, in the order of --help.
    """

    def __init__(self, *args: Any, names: tuple[str, ...], package: str, **others: Any) -> None:
        super().__init__(*args, **others)
        self.names, self.package = names, package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names, in their order."""
        del ctx
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of that name, or None."""
        del ctx
        return load(cmd_name, self.package) if cmd_name in self.names else None


def load(name: str, package: str = PACKAGE) -> click.Command:
    """Returns the command whose file in `package` is `name`."""
    command: click.Command = import_module(ELSEWHERE.get(name, f"{package}.{name}")).command
    return command


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from fairlane import __version__

    click.echo(f"fairlane {__version__}")
    ctx.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)


@click.group(
    cls=Commands,
    names=COMMANDS,
    package=PACKAGE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@version_option
def fairlane() -> None:
    """A request queue on Redis: many sub-requests, 100 priorities, a limit for each request.

    Exit codes: 0 ok, 1 sub-requests dead or request cancelled, 2 usage, 3 not found, 4 timed out,
    5 Redis unreachable or unfit, 130 interrupted.
    """
