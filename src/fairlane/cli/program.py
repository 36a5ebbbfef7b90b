"""Runs one command of the command line, by its name."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from fairlane.cli.output import flush_stdout, note, take_care_of_closed_streams
from fairlane.errors import FairlaneError

PACKAGE = "fairlane.cli.commands"

# In the order of a request's life; each but `spark` and those of SHARED is a file of PACKAGE.
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
    "tasks",
    "status",
    "why",
    "stacks",
    "kill",
    "list",
    "workers",
    "queues",
    "completions",
    "archive",
    "report",
    "stats",
    "top",
    "demand",
    "queue",
    "key",
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


# The commands whose file has others of the same subject: its name, and the command's name in it.
SHARED = {
    **{name: ("change", name) for name in ("pause", "resume", "cancel", "delete")},
    "set": ("change", "set_"),
    **{name: ("stacks", name) for name in ("stacks", "kill")},
    **{name: ("lists", name) for name in ("fanout", "forward", "balance")},
}
# Spark's commands stand with all that needs Spark.
ELSEWHERE = {"spark": "fairlane.spark.commands"}


# Words of other queues and shells, and the commands that do it here.
OTHER_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("purge flush clear empty clean wipe truncate rm del delete remove erase discard drop",
     ("delete", "dead drop", "schedule remove", "webhook remove", "topic delete", "token revoke")),
    ("retry rerun replay resubmit redo reprocess restart", ("dead requeue",)),
    ("enqueue add push send publish new create start",
     ("submit", "topic publish", "schedule add", "webhook add", "token create", "server start")),
    ("run work consume process", ("worker",)),
    ("abort terminate revoke", ("cancel", "kill")),
    ("hold freeze suspend disable", ("pause", "queue pause", "schedule pause")),
    ("unpause continue enable unfreeze", ("resume", "queue resume", "schedule resume")),
    ("ls ll all", ("list", "dead list", "schedule list", "webhook list", "topic list",
                   "token list", "flow list", "key list")),
    ("concurrency semaphore group groups keys", ("key list",)),
    ("show info inspect get describe progress stat", ("status",)),
    ("update change edit modify alter", ("set", "queue set", "key set")),
    ("explain reason", ("why",)),
    ("stack traceback dump hang stuck py-spy", ("stacks",)),
    ("failed failures failure dlq dead-letter", ("errors", "dead list")),
    ("ps nodes", ("workers",)),
    ("monitor watch live", ("top",)),
    ("metrics dashboard ui web http api", ("serve",)),
    ("check health ping diagnose repair verify", ("doctor",)),
    ("cron beat schedules recurring", ("schedule",)),
    ("log logs history", ("completions",)),
    ("output result download", ("results",)),
)  # fmt: skip


def _plain(commands: list[str]) -> list[str]:
    """Returns the commands that are in no group, and `dead drop`, which is for all requests."""
    plain = [one for one in commands if " " not in one or one.startswith("dead ")]
    return plain or commands


class CommandGroup(click.Group):
    """Suggests commands for a mistyped one: of that sense, of that name in a group, or like it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command that `args` begin with. Raises UsageError."""
        name = args[0]
        is_unknown = not name.startswith("-") and self.get_command(ctx, name) is None
        if is_unknown and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = self._alike(ctx, name) or get_close_matches(name, self.list_commands(ctx))
            close = " or ".join(near)
            hint = f". Did you mean {close}?" if close else ""
            raise click.UsageError(f"No such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def _alike(self, ctx: click.Context, name: str) -> list[str]:
        """Returns the commands that do what `name` means elsewhere, and those of that name."""
        program, *groups = ctx.command_path.split()
        start = " ".join([*groups, ""])
        meant = [
            command
            for words, commands in OTHER_WORDS
            if name.lower() in words.split()
            for command in commands
        ]
        here = [one.removeprefix(start) for one in meant if one.startswith(start)]
        if groups:
            return here or [f"{program} {one}" for one in _plain(meant)]
        return list(dict.fromkeys([*_plain(here), *self._inside(ctx, name)]))

    def _inside(self, ctx: click.Context, name: str) -> list[str]:
        """Returns the commands of that name in the groups of this group: `dead requeue`."""
        groups = {outer: self.get_command(ctx, outer) for outer in self.list_commands(ctx)}
        return [
            f"{outer} {name}"
            for outer, group in groups.items()
            if isinstance(group, click.Group) and name in group.list_commands(ctx)
        ]


class Commands(CommandGroup):
    """Loads the command `name` from its file in `package`.

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
    """Returns the command `name` from its file in `package`."""
    file, attribute = (
        SHARED.get(name, (name, "command")) if package == PACKAGE else (name, "command")
    )
    module = import_module(ELSEWHERE.get(name, f"{package}.{file}"))
    command: click.Command = getattr(module, attribute)
    _refuse_repeats(command)
    return command


def _refuse_repeats(command: click.Command) -> None:
    """Makes a command and those in it refuse an option that is given twice and has one value.

    click takes the last value without a word.
    """
    make_parser = command.make_parser

    def make(ctx: click.Context) -> Any:
        parser = make_parser(ctx)
        parse = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            found = parse(args)
            _check_repeats(found[2], ctx)
            return found

        parser.parse_args = parse_once  # type: ignore[method-assign]
        return parser

    if not getattr(make_parser, "refuses_repeats", False):  # else it was loaded before
        make.refuses_repeats = True  # type: ignore[attr-defined]
        command.make_parser = make  # type: ignore[method-assign]
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        _refuse_repeats(inner)


def _check_repeats(given: list[click.Parameter], ctx: click.Context) -> None:
    """Raises UsageError if one of these options has one value and is given again."""
    seen: set[str | None] = set()
    for one in given:
        is_switch = isinstance(one, click.Option) and one.is_flag and not one.secondary_opts
        if not isinstance(one, click.Option) or one.multiple or one.count or is_switch:
            continue
        if one.name in seen:
            name = max(one.opts, key=len)
            raise click.UsageError(f"Option {name!r} is given twice: give it once", ctx)
        seen.add(one.name)


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


# ------------------------------------------------------------------ main
# Runs one command, and turns its end or error into an exit code and one sentence.


USAGE = 2
INTERRUPTED = 130
WATCH = (  # the hint for --watch of a command without that option
    ": fairlane status ID --watch shows progress, and fairlane wait ID waits for the end"
)
_AGAIN_S = 0.01  # until a dropped Ctrl-C is sent again
NEAR = 0.8  # how similar a suggested option must be to the one given, from 0 to 1


def run(called_as: str, name: str | None = None) -> int:  # noqa: PLR0911  one for each way to end
    """Runs `fairlane`, or one of its commands by `name`, on sys.argv; returns the exit code."""
    take_care_of_closed_streams()
    keep_interrupts()
    try:
        return _invoke(called_as, name)
    except FairlaneError as error:
        note(str(error), logging.ERROR)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.ClickException as error:
        note(_usage_sentence(error), logging.ERROR)
        return USAGE
    except (KeyboardInterrupt, EOFError) as error:
        note(str(error) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone
        _forget_stdout()
        return 0
    except OSError as error:
        _forget_stdout()
        note(f"cannot go on: {error}", logging.ERROR)
        return FairlaneError.exit_code
    except Exception as error:  # noqa: BLE001  a user is never shown a traceback
        note(_bug_sentence(error), logging.ERROR)
        return FairlaneError.exit_code


def keep_interrupts() -> None:
    """Sends a Ctrl-C again that Python drops, because it came while an object was freed.

    Python cannot raise KeyboardInterrupt in a `__del__`, as of a connection: it only reports it.
    """
    report = sys.unraisablehook

    def on_unraisable(found: Any) -> None:
        if not issubclass(found.exc_type, KeyboardInterrupt):
            report(found)
            return
        main = threading.main_thread().ident
        # Not from here, because here it would be dropped, too.
        again = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT))
        again.daemon = True
        with suppress(RuntimeError):  # the interpreter ends
            again.start()

    sys.unraisablehook = on_unraisable


def _invoke(called_as: str, name: str | None) -> int:
    command = version_option(load(name)) if name else fairlane
    if _complete(command, called_as):
        return 0
    try:
        settings = fairlane.context_settings
        with command.make_context(called_as, sys.argv[1:], **settings) as context:
            status = command.invoke(context)
    except click.exceptions.Exit as done:  # --help and --version
        status = done.exit_code
    flush_stdout()
    return status or 0


def _complete(command: click.Command, program: str) -> bool:
    """Prints completions and returns True if a variable of the environment asks for them."""
    asked = os.environ.get(completion_variable(program))
    if not asked:
        return False
    from click.shell_completion import shell_complete

    shell_complete(command, {}, program, completion_variable(program), asked)
    return True


def completion_variable(program: str) -> str:
    """Returns the variable by which a shell asks a program for completions."""
    return f"_{program}_COMPLETE".replace("-", "_").upper()


def _usage_sentence(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        sentence = (
            f"No such option {error.option_name!r}{_near_options(error.option_name, context)}"
        )
    else:  # click puts each choice of a missing argument on a line of its own.
        sentence = " ".join(error.format_message().split()).rstrip(".")
    return f"{sentence} (see {context.command_path} --help)" if context else sentence


def _near_options(given: str, context: click.Context | None) -> str:
    """Returns a question that names the options which begin with `given` or resemble it; or "".

    For --watch it names what does that.
    """
    if context is None:
        return ""
    if given == "--watch":
        return WATCH
    from difflib import get_close_matches

    found = [name for option in context.command.get_params(context) for name in option.opts]
    names = [name for name in found if name.startswith("--")]
    longer = [name for name in names if name.startswith(given)] if given > "--" else []
    near = longer or get_close_matches(given, names, cutoff=NEAR)
    return f". Did you mean {' or '.join(near)}?" if near else ""


def _bug_sentence(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"this is a bug: {type(error).__name__}{where}: {error}"


def _forget_stdout() -> None:
    """Discards buffered output, so that the interpreter's last flush raises no error."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return
