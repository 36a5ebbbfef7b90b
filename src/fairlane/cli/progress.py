"""`--watch`: shows a request's progress on stderr until it ends or Ctrl-C detaches.

Before that, it shows how much of FILE has been read. A bar when stderr is a terminal and rich is
installed, else a line now and then.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import time
from collections import deque
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from fairlane import settings
from fairlane.cli.exit_status import known, so_far
from fairlane.cli.output import is_terminal, note, stdout, write_styled
from fairlane.common import clock
from fairlane.common.text import exact, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.cli.files import Source
    from fairlane.errors import RedisUnreachable
    from fairlane.protocol.steps import Operation, Step, T
    from fairlane.records import Progress
    from fairlane.request import Request


QUIET_S = 5.0  # after so long without progress
AGAIN_S = 1.5  # a worker is missing if two looks find none: after an outage a heartbeat may be late


async def what_is_missing(now: Progress) -> str:
    """Returns what lets a request go on if it is paused or no worker serves its queue, else ""."""
    from fairlane.operations.estimate import read_request
    from fairlane.operations.why import GATED, own_cause
    from fairlane.operations.workers import unserved

    if now.state == "paused":
        return f"fairlane resume {now.id} lets it go on"
    facts = await read_request(now.id) if now.opens_ms else None
    cause = own_cause(facts) if facts is not None else None
    if cause is not None and cause.kind in GATED:
        return cause.text
    return await unserved(now.queue) if now.left else ""


class StallNotice:
    """Prints once that a request makes no progress, because it is paused or has no worker.

    If it `reads` results, their reader also gets the notice for any other reason.
    """

    def __init__(self, request_id: str, *, reads: bool = False) -> None:
        self._id, self._reads = request_id, reads
        self._settled = 0
        self._seen_missing = False
        self._due = clock.mono_s() + QUIET_S

    @property
    def left_s(self) -> float:
        """Returns the seconds until the next look is due."""
        return max(0.0, self._due - clock.mono_s())

    def put_off(self) -> None:
        """Notes progress."""
        if self._due < inf:
            self._due, self._seen_missing = clock.mono_s() + QUIET_S, False

    async def look(self, now: Progress | None = None) -> None:
        """Prints the notice if it is due; `now` are the counts if they were read. RequestLost."""
        if now is not None and now.total - now.left != self._settled:
            self._settled = now.total - now.left
            self.put_off()
        if clock.mono_s() < self._due:
            return
        if now is None:
            from fairlane.operations.request_state import progress

            with known(self._id):
                now = await progress(self._id)
        missing = "" if now.ended else await what_is_missing(now)
        if missing and not self._seen_missing:
            self._due, self._seen_missing = clock.mono_s() + AGAIN_S, True
        elif missing or (self._reads and not now.ended):
            self._due = inf
            quiet = f"no result for {exact(QUIET_S)} s: " if self._reads else ""
            counts = f"is {now.state} with {now.done:,}/{now.total:,} done{so_far(now)}"
            note(f"{quiet}request {now.id} {counts}" + (f"; {missing}" if missing else ""))
        else:
            self.put_off()

    async def during(self, wait: Operation[T]) -> T:
        """Runs an operation that waits for messages, and looks before it waits."""
        from fairlane.cli.driver import each_step
        from fairlane.protocol.steps import Message, forward

        async def perform(step: Step) -> object:
            if isinstance(step, Message):
                await self.look()
                step = Message(min(step.timeout_s, self.left_s))
            return await forward(step)

        return await each_step(wait, perform)


# ------------------------------------------------------------------ refresh
# `--watch` of a view: on a terminal it is drawn in place, elsewhere a line follows each change.


EVERY_S = 1.0  # between two reads, at least
_REST = 9  # a read that takes long is followed by a pause so many times as long
_CLEAR, _HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"
_CUT_LINES, _WRAP_LINES = "\x1b[?7l", "\x1b[?7h"


class ProgressFrame(NamedTuple):
    """One read: the lines of the view, one line with the same facts, and a mark that changes.

    After the last one nothing changes any more.
    """

    lines: Sequence[str]
    line: str
    mark: str
    is_last: bool = False


def refresh(look: Callable[[], ProgressFrame], *, in_place: bool) -> None:
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


def _print_changes() -> Callable[[ProgressFrame], None]:
    printed: list[str] = []

    def show(frame: ProgressFrame) -> None:
        if printed != [frame.mark]:
            printed[:] = [frame.mark]
            write_styled(frame.line)

    return show


def _draw() -> Callable[[ProgressFrame], None]:
    """Draws from the first line of the terminal on; a view that is too high is cut off."""
    first = [_CLEAR]

    def show(frame: ProgressFrame) -> None:
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


# ------------------------------------------------------------------ bar
# Draws a progress bar of a request, or of a file that is read. Needs rich: import it lazily.


BAR_S = 0.2  # between looks


class Bar(AbstractContextManager["Bar"]):
    """Draws a bar on stderr, and removes a `transient` one at the end. Colours follow NO_COLOR."""

    def __init__(self, *, transient: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Columns

        text = "{task.fields[text]}"
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn(text, markup=False),
        )
        self._columns = Columns(*columns, console=Console(stderr=True), transient=transient)
        self._task = self._columns.add_task("", total=None, text="")

    def __enter__(self) -> Self:
        self._columns.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._columns.stop()

    def show(self, now: Progress, rate: float | None) -> float:
        """Draws the bar; returns the seconds until the next look."""
        text = [
            f"{now.done:,}/{now.total:,}{so_far(now)}",
            f"{now.dead:,} dead" if now.dead else "",
        ]
        text += [f"{now.left_out:,} left out" if now.left_out else ""]
        text += [
            "-/s" if rate is None else f"{rate:,.0f}/s",
            "" if now.ended else _when(now, rate),
        ]
        text += [f"permits {now.held}/{now.limit}"]
        self._columns.update(
            self._task,
            description=now.id,
            total=None if now.is_open else now.total or None,
            completed=now.total - now.left,
            text=printable("  ".join(part for part in text if part)),
        )
        return BAR_S

    def show_away(self, place: str, away_s: float) -> float:
        """Shows the outage in place of the rate; returns after how many seconds to try again."""
        del place  # the bar has no room for it
        since = f" for {away_s:.0f} s" if away_s >= 1 else ""
        self._columns.update(self._task, text=f"Redis does not answer{since}")
        return BAR_S

    def show_reading(self, now: Reading, rate: float | None) -> float:
        """Draws the bar; returns the seconds until the next look."""
        self._columns.update(
            self._task,
            description=printable(now.title),
            total=None if now.share is None else 1.0,
            completed=now.share or 0.0,
            text="  ".join([now.doing, *now.figures(rate)]),
        )
        return BAR_S


def _when(now: Progress, rate: float | None) -> str:
    """Returns the ETA of an active request whose total is final, else its state."""
    if now.is_open and now.state == "active":
        return "more may come"
    return f"ETA {eta(now.left, rate)}" if now.state == "active" else now.shown_state


RATE_OVER_S = 10.0  # the rate is that of the last so many seconds
AWAY_AGAIN_S = 0.5  # between two tries while Redis does not answer
FIRST_S = 0.5  # reading a file is shown only if it takes longer than this
LINES_S = (1.0, 30.0)  # the time between two lines: at first, and later


class View(Protocol):
    """Where progress is shown."""

    def show(self, now: Progress, rate: float | None) -> float:
        """Shows the counts; returns after how many seconds to look again."""

    def show_away(self, place: str, away_s: float) -> float:
        """Shows that Redis does not answer; returns after how many seconds to try again."""

    def show_reading(self, now: Reading, rate: float | None) -> float:
        """Shows how far FILE has been read; returns after how many seconds to look again."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Describes how far FILE has been read, and for what; `share` is None for a pipe."""

    title: str
    doing: str
    lines: int
    share: float | None

    def figures(self, rate: float | None) -> list[str]:
        """Returns lines, rate and ETA in words."""
        share = "" if self.share is None else f" ({self.share:.0%})"
        found = [f"{self.lines:,} lines read{share}", f"{rate:,.0f}/s" if rate else ""]
        if rate and self.share:
            found.append(f"ETA {eta(self.lines / self.share - self.lines, rate)}")
        return [figure for figure in found if figure]


class Meter(AbstractContextManager["Meter"]):
    """Shows how far FILE has been read, as often as its view asks for it."""

    def __init__(self, source: Source, title: str, doing: str) -> None:
        self._source, self._title, self._doing = source, title, doing
        self._view: View | None = None
        self._opened = ExitStack()
        self._pace = CountPace()
        now = time.monotonic()
        self._pace.add(now, 0)
        self._due = now + FIRST_S if source.is_file else now

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def look(self, lines: int) -> None:
        """Shows how many lines have been read, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._view is None:
            self._view = self._opened.enter_context(_view(transient=True))
        reading = Reading(self._title, self._doing, lines, self._source.share())
        self._due = now + self._view.show_reading(reading, self._pace.add(now, lines))


def watch(request: Request, timeout: float | None) -> None:
    """Shows progress until the end. Raises WaitTimeout, RedisUnreachable, RequestNotFound."""
    from fairlane.drivers.sync import SyncDriver

    # A driver of its own: it makes one try and reports an outage soon, so that it can be shown.
    url = request.queue.driver.url
    with (
        closing(SyncDriver(url, patience_s=0, timeout_s=settings.AWAY_S)) as driver,
        _view() as view,
    ):
        driver.run(_Watching(request.id, view, timeout, driver.place).follow())


class _Watching:
    """Reads a request until it ends, and continues after an outage of Redis."""

    def __init__(self, request_id: str, view: View, timeout: float | None, place: str) -> None:
        self._id, self._view, self._timeout, self._place = request_id, view, timeout, place
        self._notice = StallNotice(request_id)
        self._end = inf if timeout is None else time.monotonic() + timeout
        self._pace = CountPace()
        self._away_since: float | None = None
        self._born = 0  # distinguishes the request from a later one with the same id

    async def follow(self) -> None:
        """Reads until the end. An outage that lasts for longer than PATIENCE_S is raised."""
        from fairlane.errors import RedisUnreachable
        from fairlane.protocol.steps import Pause

        while True:
            try:
                return await self._look()
            except RedisUnreachable as error:
                await Pause(self._away(error))

    async def _look(self) -> None:
        """Subscribes, then reads the state: so the end is seen immediately, or at the next read.

        Raises WaitTimeout, RequestNotFound, RequestLost.
        """
        from fairlane.operations.completion import replaced, timed_out
        from fairlane.operations.request_state import progress
        from fairlane.protocol import keys
        from fairlane.protocol.steps import Message, Subscribe

        await Subscribe(keys.done_channel(self._id))
        while True:
            now = await progress(self._id)
            self._away_since = None
            self._born = self._born or now.submitted_ms
            if now.submitted_ms != self._born:
                raise replaced(self._id)
            pause = self._view.show(now, self._pace.add(time.monotonic(), now.total - now.left))
            if now.ended:
                return
            if self._left() <= 0:
                raise await timed_out(self._id, now.queue, self._timeout or 0.0)
            await self._notice.look(now)
            await Message(min(pause, self._left(), self._notice.left_s))

    def _away(self, error: RedisUnreachable) -> float:
        """Shows an outage; returns after how many seconds to try again."""
        now = time.monotonic()
        self._away_since = self._away_since or now
        away_s = now - self._away_since
        if away_s >= settings.PATIENCE_S:
            raise error
        pause = self._view.show_away(self._place, away_s)
        if self._left() <= 0:
            from fairlane.errors import WaitTimeout

            raise WaitTimeout(
                f"request {self._id} had not ended after {exact(self._timeout or 0)} s; "
                f"Redis has not answered for {away_s:.0f} s"
            )
        return min(pause, self._left())

    def _left(self) -> float:
        """Returns the seconds that are left of the timeout; negative when it is over."""
        return self._end - time.monotonic()


class CountPace:
    """Measures how fast a count has grown lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> float | None:
        """Returns the rate a second over the last seconds; None if it cannot be computed yet."""
        self._seen.append((now, count))
        while now - self._seen[0][0] > RATE_OVER_S and len(self._seen) > 2:  # noqa: PLR2004  two points make a rate
            self._seen.popleft()
        since, before = self._seen[0]
        return (count - before) / (now - since) if now > since else None


def _view(*, transient: bool = False) -> AbstractContextManager[View]:
    if sys.stderr.isatty():
        try:
            return Bar(transient=transient)
        except ImportError:  # the extra `progress` is not installed
            return Lines()
    return Lines()


class Lines(AbstractContextManager["Lines"]):
    """A line now and then, ever less often, and only when something changed."""

    def __init__(self) -> None:
        self._pause = LINES_S[0]
        self._printed = ""
        self._is_away = False

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, now: Progress, rate: float | None) -> float:
        """Prints a line; returns after how many seconds to look again."""
        if self._is_away:
            from fairlane.drivers.driver import BACK

            note(BACK)
        self._is_away = False
        return self._print(describe(now, rate))

    def show_reading(self, now: Reading, rate: float | None) -> float:
        """Prints a line; returns after how many seconds to look again."""
        return self._print(f"{now.title}: {now.doing}, {', '.join(now.figures(rate))}")

    def _print(self, line: str) -> float:
        if line != self._printed:
            note(line)
        self._printed = line
        pause, self._pause = self._pause, min(self._pause * 1.5, LINES_S[1])
        return pause

    def show_away(self, place: str, away_s: float) -> float:
        """Prints a line, once an outage; returns after how many seconds to try again."""
        from fairlane.cli.driver import AWAY_S
        from fairlane.drivers.driver import away

        if away_s >= AWAY_S and not self._is_away:
            self._is_away = True
            note(away(place, settings.PATIENCE_S))
        return AWAY_AGAIN_S


def eta(left: float, rate: float | None) -> str:
    """Returns how long the rest takes at this rate, as h:mm:ss."""
    if not rate:
        return "-:--:--"
    minutes, seconds = divmod(round(left / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def describe(now: Progress, rate: float | None) -> str:
    """Returns the progress as one sentence."""
    parts: list[Any] = [f"{now.done:,}/{now.total:,} done{so_far(now)}"]
    others = ((now.dead, "dead"), (now.cancelled, "cancelled"), (now.left_out, "left out"))
    parts += [f"{count:,} {word}" for count, word in others if count]
    if not now.ended:
        parts += [f"{rate:,.0f}/s"] if rate else []
        has_eta = rate and now.state == "active" and not now.is_open
        parts += [f"ETA {eta(now.left, rate)}"] if has_eta else []
        parts.append(f"permits {now.held}/{now.limit}")
    word = now.state if now.outcome == "partly_failed" else now.shown_state
    return f"request {now.id} {word}: {', '.join(parts)}"
