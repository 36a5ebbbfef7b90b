"""`fairlane completion`: makes a shell complete commands, options and file names."""

from __future__ import annotations

import os

import click

from fairlane.cli.output import stdout

PROGRAMS = ("fairlane", "rq-submit", "rq-worker")


@click.command("completion", short_help="Print what makes a shell complete commands and options.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print what makes SHELL complete fairlane, rq-submit and rq-worker.

    \b
    bash, in ~/.bashrc:                   eval "$(fairlane completion bash)"
    zsh, in ~/.zshrc behind compinit:     eval "$(fairlane completion zsh)"
    fish, in ~/.config/fish/config.fish:  fairlane completion fish | source
    """  # noqa: D301  click reads the \b
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click does not support {shell}")
    for program in PROGRAMS:
        text = kind(command, {}, program, _variable(program)).source()
        stdout().write(f"{text}\n".encode())
    return 0


def complete(command: click.Command, program: str) -> bool:
    """Prints completions and returns True if a variable of the environment asks for them."""
    asked = os.environ.get(_variable(program))
    if not asked:
        return False
    from click.shell_completion import shell_complete

    shell_complete(command, {}, program, _variable(program), asked)
    return True


def _variable(program: str) -> str:
    return f"_{program}_COMPLETE".replace("-", "_").upper()
