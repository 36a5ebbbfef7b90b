"""Cleans up around a demo: it leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fairlane import FairlaneError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane import Queue


def end_as_by_ctrl_c() -> None:
    """Makes SIGTERM, and the end of the terminal, interrupt this program as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def cancelled_unless_ended(queue: Queue) -> Iterator[None]:
    """Cancels the queue's unfinished requests, before (of an aborted demo) and after."""
    _cancel_all(queue)
    try:
        yield
    finally:
        _cancel_all(queue)


def _cancel_all(queue: Queue) -> None:
    for unfinished in queue.status().requests:
        with contextlib.suppress(FairlaneError):  # it has just ended
            queue.request(unfinished.id).cancel("left by the demo")


def near(path: Path) -> Path:
    """Returns the path relative to the current directory, if it is below it."""
    path, here = path.resolve(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
