"""Progress on stderr while the demo runs: bars on a terminal, else a line a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from demo_requests import DemoRequest

LINE_S = 1.0


def live(requests: tuple[DemoRequest, ...]) -> Bars | Lines:
    """Returns the view that this stderr can show."""
    if sys.stderr.isatty():
        try:
            return Bars(requests)
        except ImportError:  # the extra `progress` is not installed
            pass
    return Lines(requests)


class Lines:
    """Writes plain lines."""

    def __init__(self, requests: tuple[DemoRequest, ...]) -> None:
        self._requests = requests
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self) -> None:
        """Writes a line of progress, at most one a second."""
        now = time.monotonic()
        if now - self._shown >= LINE_S:
            self._shown = now
            self.say("   ".join(_short(request) for request in self._requests if request.request))

    def say(self, sentence: str) -> None:
        """Writes a sentence with the time since the beginning."""
        print(f"{time.monotonic() - self._began:5.1f} s  {sentence}", file=sys.stderr, flush=True)


def _short(request: DemoRequest) -> str:
    progress = request.progress
    if progress is None or progress.ended:
        return f"{request.name} ended"
    return f"{request.name} {request.share:4.0%} ({progress.held}/{progress.limit} permits)"


class Bars:
    """Draws a bar for each request. Colours follow NO_COLOR."""

    def __init__(self, requests: tuple[DemoRequest, ...]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._requests = requests
        self._began = time.monotonic()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=36),
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True),
        )
        self._tasks = {
            request.name: self._bars.add_task(
                f"{request.name:<6}  priority {request.priority:>2}",
                total=len(request.paths),
                text="",
            )
            for request in requests
        }

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.show()
        self._bars.stop()

    def show(self) -> None:
        """Draws all bars."""
        for request in self._requests:
            progress = request.progress
            if progress is not None:
                text = f"{progress.total - progress.left:>5,}/{progress.total:,}"
                text += (
                    "  ended" if progress.ended else f"  permits {progress.held}/{progress.limit}"
                )
                self._bars.update(
                    self._tasks[request.name], completed=progress.total - progress.left, text=text
                )

    def say(self, sentence: str) -> None:
        """Writes a sentence above the bars."""
        clock = f"{time.monotonic() - self._began:5.1f} s"
        self._bars.console.print(f"{clock}  {sentence}", markup=False, highlight=False)
