"""Runs one command, and turns its end or error into an exit code and one sentence."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path

import click

from fairlane.cli.output import flush_stdout, note, take_care_of_closed_streams
from fairlane.errors import FairlaneError

USAGE = 2
INTERRUPTED = 130
WATCH = (  # the hint for --watch of a command without that option
    ": fairlane status ID --watch shows progress, and fairlane wait ID waits for the end"
)
NEAR = 0.8  # how similar a suggested option must be to the one given, from 0 to 1


def run(called_as: str, name: str | None = None) -> int:  # noqa: PLR0911  one for each way to end
    """Runs `fairlane`, or one of its commands by `name`, on sys.argv; returns the exit code."""
    take_care_of_closed_streams()
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


def _invoke(called_as: str, name: str | None) -> int:
    from fairlane.cli.commands.completion import complete
    from fairlane.cli.registry import fairlane, load, version_option

    command = version_option(load(name)) if name else fairlane
    if complete(command, called_as):
        return 0
    try:
        settings = fairlane.context_settings
        with command.make_context(called_as, sys.argv[1:], **settings) as context:
            status = command.invoke(context)
    except click.exceptions.Exit as done:  # --help and --version
        status = done.exit_code
    flush_stdout()
    return status or 0


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
