"""`--watch` of a view: on a terminal it is drawn in place, elsewhere a line follows each change."""

from __future__ import annotations

import datetime as dt
import shutil
from typing import TYPE_CHECKING, NamedTuple

from fairlane.cli.display.colours import is_terminal
from fairlane.cli.output import stdout, write_styled
from fairlane.common import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EVERY_S = 1.0  # between two reads, at least
_REST = 9  # a read that takes long is followed by a pause so many times as long
_CLEAR, _HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"
_CUT_LINES, _WRAP_LINES = "\x1b[?7l", "\x1b[?7h"


class Frame(NamedTuple):
    """One read: the lines of the view, one line with the same facts, and a mark that changes.

    After the last one nothing changes any more.
    """

    lines: Sequence[str]
    line: str
    mark: str
    is_last: bool = False


def refresh(look: Callable[[], Frame], *, in_place: bool) -> None:
    """Shows the view again and again until its last frame; Ctrl-C raises KeyboardInterrupt.

    With `in_place` it is drawn, if stdout is a terminal.
    """
    show = _draw() if in_place and is_terminal() else _print_changes()
    while True:
        began = clock.mono_s()
        frame = look()
        show(frame)
        if frame.is_last:
            return
        clock.sleep(max(EVERY_S, _REST * (clock.mono_s() - began)))


def _print_changes() -> Callable[[Frame], None]:
    printed: list[str] = []

    def show(frame: Frame) -> None:
        if printed != [frame.mark]:
            printed[:] = [frame.mark]
            write_styled(frame.line)

    return show


def _draw() -> Callable[[Frame], None]:
    """Draws from the first line of the terminal on; a view that is too high is cut off."""
    first = [_CLEAR]

    def show(frame: Frame) -> None:
        height = shutil.get_terminal_size().lines
        lines = [*frame.lines[: height - 2], *([] if frame.is_last else [_footer()])]
        drawn = "".join(f"{line}{_REST_OF_LINE}\n" for line in lines)
        start = "".join(first)
        first.clear()
        out = stdout()
        text = f"{start}{_HOME}{_CUT_LINES}{drawn}{_REST_OF_SCREEN}{_WRAP_LINES}"
        out.write(text.encode())
        out.flush()

    return show


def _footer() -> str:
    """Returns when this was, by the clock of this machine."""
    return f"({dt.datetime.now().astimezone():%H:%M:%S}; Ctrl-C ends)"
