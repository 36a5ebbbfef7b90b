"""`--watch`: shows a request's progress on stderr until it ends or Ctrl-C detaches.

A bar when stderr is a terminal and rich is installed, else a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from .pace import eta
from .talk import say

if TYPE_CHECKING:
    from ..model import Progress
    from ..queue import Request
    from ..steps import Operation

RATE_OVER_S = 10.0  # the rate is that of the last so many seconds
LINES_S = (1.0, 30.0)  # a line's distance from the one before: first, and in the end


class View(Protocol):
    """Where progress is shown."""

    def show(self, now: Progress, rate: float | None) -> float:
        """Shows it; returns after how many seconds to look again."""


def watch(request: Request, timeout: float | None) -> None:
    """Shows progress until the end. Raises WaitTimeout."""
    with _view() as view:
        request.queue.driver.run(_follow(request.id, view, timeout))


def _follow(request_id: str, view: View, timeout: float | None) -> Operation[None]:
    """Subscribes, then looks: the end is seen at once, and a lost message costs one look."""
    from .. import keys
    from ..errors import WaitTimeout
    from ..operations.control import progress
    from ..steps import Message, Subscribe

    end = None if timeout is None else time.monotonic() + timeout
    pace = Pace()
    yield Subscribe(keys.done_channel(request_id))
    while True:
        now = yield from progress(request_id)
        pause = view.show(now, pace.add(time.monotonic(), now.total - now.left))
        if now.ended:
            return
        if end is not None:
            pause = min(pause, end - time.monotonic())
        if pause <= 0:
            raise WaitTimeout(f"request {request_id} had not ended after {timeout:g} s; it goes on")
        yield Message(pause)


class Pace:
    """How fast the settled sub-requests grow, lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, settled: int) -> float | None:
        """Sub-requests a second over the last seconds; None while that can't be said."""
        self._seen.append((now, settled))
        while now - self._seen[0][0] > RATE_OVER_S and len(self._seen) > 2:  # noqa: PLR2004  two points make a rate
            self._seen.popleft()
        since, before = self._seen[0]
        return (settled - before) / (now - since) if now > since else None


def _view() -> AbstractContextManager[View]:
    if sys.stderr.isatty():
        try:
            from .bar import Bar

            return Bar()
        except ImportError:  # the extra `progress` is not installed
            return Lines()
    return Lines()


class Lines(AbstractContextManager["Lines"]):
    """A line now and then, ever less often, and only when something changed."""

    def __init__(self) -> None:
        self._pause = LINES_S[0]
        self._said = ""

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, now: Progress, rate: float | None) -> float:
        """Says a line; returns after how many seconds to look again."""
        line = describe(now, rate)
        if line != self._said:
            say(line)
        self._said = line
        pause, self._pause = self._pause, min(self._pause * 1.5, LINES_S[1])
        return pause


def describe(now: Progress, rate: float | None) -> str:
    """Progress as one sentence."""
    parts: list[Any] = [f"{now.done:,}/{now.total:,} done"]
    others = ((now.dead, "dead"), (now.cancelled, "cancelled"))
    parts += [f"{count:,} {word}" for count, word in others if count]
    if not now.ended:
        parts += [f"{rate:,.0f}/s"] if rate else []
        parts += [f"ETA {eta(now, rate)}"] if rate and now.state == "active" else []
        parts.append(f"permits {now.held}/{now.limit}")
    return f"request {now.id} {now.state}: {', '.join(parts)}"
