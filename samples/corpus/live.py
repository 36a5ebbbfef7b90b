"""Progress on stderr while the demo runs: bars on a terminal, else a line a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from asked import Asked

LINE_S = 1.0


def live(asked: tuple[Asked, ...]) -> Bars | Lines:
    """What this stderr can show."""
    if sys.stderr.isatty():
        try:
            return Bars(asked)
        except ImportError:  # the extra `progress` is not installed
            pass
    return Lines(asked)


class Lines:
    """Plain lines."""

    def __init__(self, asked: tuple[Asked, ...]) -> None:
        self._asked = asked
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self) -> None:
        """A line, when it is time for one."""
        now = time.monotonic()
        if now - self._said >= LINE_S:
            self._said = now
            self.say("   ".join(_short(one) for one in self._asked if one.request))

    def say(self, sentence: str) -> None:
        """Something happened."""
        print(f"{time.monotonic() - self._began:5.1f} s  {sentence}", file=sys.stderr, flush=True)


def _short(asked: Asked) -> str:
    now = asked.progress
    if now is None or now.ended:
        return f"{asked.name} ended"
    return f"{asked.name} {asked.share:4.0%} ({now.held}/{now.limit} permits)"


class Bars:
    """A bar for each request. Colours follow NO_COLOR."""

    def __init__(self, asked: tuple[Asked, ...]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._asked = asked
        self._began = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=36),
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True),
        )
        self._tasks = {
            one.name: self._bars.add_task(
                f"{one.name:<6}  priority {one.priority:>2}", total=len(one.paths), text=""
            )
            for one in asked
        }

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.show()
        self._bars.stop()

    def show(self) -> None:
        """Draws all of them."""
        for one in self._asked:
            now = one.progress
            if now is not None:
                text = f"{now.total - now.left:>5,}/{now.total:,}"
                text += "  ended" if now.ended else f"  permits {now.held}/{now.limit}"
                self._bars.update(self._tasks[one.name], completed=now.total - now.left, text=text)

    def say(self, sentence: str) -> None:
        """Something happened: it stands above the bars."""
        clock = f"{time.monotonic() - self._began:5.1f} s"
        self._bars.console.print(f"{clock}  {sentence}", markup=False, highlight=False)
