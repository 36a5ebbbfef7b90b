"""`fairlane completions`: the requests that ended, from the durable log."""

from __future__ import annotations

import datetime as dt
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from fairlane import settings
from fairlane.cli.options import json_option, limit_option, open_queue, queue_option, redis_option
from fairlane.cli.output import ago, coloured, note, note_unknown, write_json, write_styled
from fairlane.common.text import of_queue, printable
from fairlane.errors import InvalidArgument, RedisUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.queue import Queue
    from fairlane.records import Completion, RequestPage

_PLACE = re.compile(r"0|[0-9]{1,15}-[0-9]{1,19}")
_MOMENT_MS = re.compile(r"[0-9]{12,15}")
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999, the last that has a date


@click.command("completions", short_help="Print the requests that ended, from the durable log.")
@click.option(
    "--since",
    metavar="PLACE",
    help="Begin behind this place: a log id that was printed, 0 for all that is kept, 10m for the "
    "last ten minutes, or a time such as 2026-11-23T10:00Z.  [default: the newest --limit]",
)
@click.option("--follow", is_flag=True, help="Wait for further endings, until Ctrl-C.")
@limit_option(100)
@queue_option
@json_option
@redis_option
def command(
    redis: str | None, queue: str, since: str | None, follow: bool, limit: int, as_json: bool
) -> int:
    """Print a line for each request that ended, the oldest first.

    The first word is a log id: --since with it continues behind that request, so none is missed.
    With --follow there is no --limit behind --since. The log keeps about the last 100,000 endings,
    and up to 2,000,000 while a reader is behind.
    Exit code 1: endings behind --since may have left the log before they were read.
    """
    if since is not None and not _PLACE.fullmatch(since):
        _moment_ms(since, 0)  # a wrong one is reported before Redis is asked
    with open_queue(redis, queue) as opened:
        log = _Log(opened, limit, as_json=as_json)
        with log.naming_the_next_command():
            if since is None:
                log.print_newest()
            if follow:
                log.follow(since)
            elif since is not None:
                log.print_since(since)
        if not log.last_id:
            if not as_json:
                note(
                    f"no request of queue {queue} has ended" + (f" since {since}" if since else "")
                )
            note_unknown(opened)
    return 0


class _Log:
    """Prints endings, and remembers the last one that it printed."""

    def __init__(self, queue: Queue, limit: int, *, as_json: bool) -> None:
        self._queue, self._limit, self._as_json = queue, limit, as_json
        self.last_id = ""

    def print_newest(self) -> None:
        """Prints the newest endings, the oldest of them first."""
        for ending in reversed(self._newest(self._limit).requests):
            self._print(ending)  # type: ignore[arg-type]  # only endings were asked for

    def print_since(self, since: str) -> None:
        """Prints `limit` endings behind a place, and notes that there are more."""
        left = self._limit
        for ending in self._queue.completions(self._place(since), follow=False):
            if not left:
                note(f"there are more: repeat the command with --since {self.last_id}")
                return
            self._print(ending)
            left -= 1

    def follow(self, since: str | None) -> None:
        """Prints endings as they come; does not return. Raises DataLost, InvalidArgument."""
        place = (self.last_id or "0") if since is None else self._place(since)
        for ending in self._queue.completions(place, follow=True):
            self._print(ending)

    def _newest(self, limit: int) -> RequestPage:
        return self._queue.list_requests(states=["ended"], limit=limit)

    def _place(self, since: str) -> str:
        """Returns a place in the log for the API. Raises InvalidArgument."""
        if _PLACE.fullmatch(since):
            return since
        now_ms = self._newest(1).now_ms
        moment_ms = _moment_ms(since, now_ms)
        if moment_ms > now_ms:
            raise InvalidArgument(f"--since {since} is in the future: give a time before now")
        return str(max(0, moment_ms))

    def _print(self, ending: Completion) -> None:
        self.last_id = ending.log_id
        if self._as_json:
            write_json(ending)
        else:
            write_styled(_line(ending))

    @contextmanager
    def naming_the_next_command(self) -> Iterator[None]:
        """Adds to Ctrl-C and to an outage the command that continues."""
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted{self._again()}") from None
        except RedisUnreachable as error:
            raise RedisUnreachable(f"{error}{self._again()}") from None

    def _again(self) -> str:
        if not self.last_id:
            return ""
        queue = of_queue(self._queue.name)
        return f"; fairlane completions --follow{queue} --since {self.last_id} continues"


def _moment_ms(since: str, now_ms: int) -> int:
    """Returns the time that `--since` means, in ms. Raises InvalidArgument."""
    if _MOMENT_MS.fullmatch(since):
        return int(since)
    with suppress(InvalidArgument):
        return now_ms - settings.duration_ms(since)
    try:
        return int(dt.datetime.fromisoformat(since).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise InvalidArgument(
            f"--since {since} is no place in the log: give a log id, 0, a time such as 10m, "
            "or a moment such as 2026-11-23T10:00Z"
        ) from None


def _line(ending: Completion) -> str:
    """Returns one ending: its place, when and how it ended, its counts, and how long it took."""
    ended = dt.datetime.fromtimestamp(min(ending.ended_ms, _LATEST_MS) / 1000, dt.UTC)
    counts = [f"{ending.done:,} done"]
    if ending.dead:
        counts.append(coloured("dead", f"{ending.dead:,} dead"))
    if ending.cancelled:
        counts.append(f"{ending.cancelled:,} cancelled")
    took = ago(max(0, ending.ended_ms - ending.submitted_ms))
    reason = f": {printable(ending.reason)}" if ending.reason else ""
    word = ending.outcome or ending.state
    shown = ending.state if word == "partly_failed" else word  # the counts say how many are dead
    return (
        f"{ending.log_id}  {ended:%Y-%m-%dT%H:%M:%SZ}  {coloured(word, shown)}  "
        f"{printable(ending.id)}  {', '.join(counts)} of {ending.total:,} in {took}{reason}"
    )
