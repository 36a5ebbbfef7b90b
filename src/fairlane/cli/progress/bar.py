"""Draws a progress bar of a request, or of a file that is read. Needs rich: import it lazily."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from fairlane.cli.durations import eta
from fairlane.cli.exit_status import so_far
from fairlane.common.terminal import printable

if TYPE_CHECKING:
    from fairlane.cli.progress.view import Reading
    from fairlane.model import Progress


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
    return f"ETA {eta(now.left, rate)}" if now.state == "active" else now.state
