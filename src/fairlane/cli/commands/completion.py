"""`fairlane completion`: makes a shell complete commands, options and file names."""

from __future__ import annotations

import click

from fairlane.cli.output import stdout
from fairlane.cli.program import completion_variable

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
        text = kind(command, {}, program, completion_variable(program)).source()
        stdout().write(f"{text}\n".encode())
    return 0
