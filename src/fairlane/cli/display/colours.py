"""Colours of states on a terminal; none elsewhere, and none if NO_COLOR is set.

Each function returns text without characters that command a terminal, but for the colours.
"""

from __future__ import annotations

import os
import sys

import click

from fairlane.common.terminal import printable

_COLOURS = {
    "active": "cyan",
    "alive": "green",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "dead": "red",
    "done": "green",
    "expiring": "yellow",
    "failing": "yellow",
    "lost": "red",
    "paused": "yellow",
    "retry": "yellow",
    "stopped": "red",
    "submitting": "cyan",
}


def is_terminal() -> bool:
    """Returns True if stdout is a terminal that a program may draw on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def coloured(state: str, text: str | None = None) -> str:
    """Returns `text`, or the state itself, in the colour of that state."""
    shown = printable(state if text is None else text)
    colour = _COLOURS.get(state)
    if colour is None or os.environ.get("NO_COLOR") or not is_terminal():
        return shown
    return click.style(shown, fg=colour)


def bold(text: str) -> str:
    """Returns text in bold, as the head of a table."""
    shown = printable(text)
    if os.environ.get("NO_COLOR") or not is_terminal():
        return shown
    return click.style(shown, bold=True)
