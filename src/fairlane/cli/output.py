"""Output of commands: data to stdout as bytes, messages to stderr as one sentence a line.

Whatever a command prints goes through here, and none of it can command a terminal. Results as plain
lines are the exception: they are the bytes that a handler returned.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from fairlane.common.task_names import tasks_words
from fairlane.common.text import as_json, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fairlane.queue import Queue
    from fairlane.records import DeadGroup, FailureGroup, RequestCounts


_takers: list[Callable[[int, str], None]] = []


def send_notes_to(taker: Callable[[int, str], None]) -> None:
    """Passes each later note with its level to `taker`: a log of JSON lines has no line of text."""
    _takers[:] = [taker]


def note(sentence: str, level: int = logging.INFO) -> None:
    """Writes one line to stderr. A closed stderr is no error. `level` counts in a log only."""
    if _takers:
        _takers[0](level, sentence)
        return
    line = printable(" ".join(sentence.split("\n")))
    try:
        print(f"fairlane: {line}", file=sys.stderr, flush=True)  # noqa: T201  that is what it is for
    except (OSError, ValueError):
        return


def stdout() -> BinaryIO:
    """Returns the stream for data."""
    return sys.stdout.buffer


def flush_stdout() -> None:
    """Writes buffered data out; raises BrokenPipeError when the reader is gone."""
    sys.stdout.flush()


def write_line(line: str) -> None:
    """Writes one line of data and flushes it."""
    write_styled(printable(line))


def write_styled(line: str) -> None:
    """Writes one line that `table` made, with its colours, and flushes it."""
    out = stdout()
    out.write(line.encode() + b"\n")
    out.flush()


def write_json(value: Any) -> None:
    """Writes one JSON value as a line of data."""
    write_line(as_json(value))


def take_care_of_closed_streams() -> None:
    """Replaces a stream that the caller closed (`>&-`) by one that discards its data."""
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    if sys.stderr is None:
        sys.stderr = io.StringIO()


# ------------------------------------------------------------------ durations
# Durations in words.


def ago(ms: int) -> str:
    """Returns a duration in its two largest units."""
    if ms < 1000:  # noqa: PLR2004  a second
        return f"{ms} ms"
    seconds = ms // 1000
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def until_words(queue: str, paused_until_ms: int | None) -> str:
    """Returns until when a queue is paused, in words."""
    from fairlane.common.text import of_queue
    from fairlane.operations.pause import time_text

    if paused_until_ms is None:
        return f"until fairlane queue resume{of_queue(queue)}"
    return f"until {time_text(paused_until_ms)}"


# ------------------------------------------------------------------ colours
# Colours of states on a terminal; none elsewhere, and none if NO_COLOR is set.
#
# Each function returns text without characters that command a terminal, but for the colours.


_COLOURS = {
    "active": "cyan",
    "alive": "green",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "dead": "red",
    "done": "green",
    "expiring": "yellow",
    "failed": "red",
    "failing": "yellow",
    "lost": "red",
    "repaired": "green",
    "partly_failed": "yellow",
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


# ------------------------------------------------------------------ failure groups
# Lines and JSON of dead sub-requests with equal failures, for `dead list` and `errors`.


HEADLINE = 200  # characters of an error


def group_lines(group: DeadGroup, now_ms: int) -> Iterator[str]:
    """Yields the two lines of one group."""
    from fairlane.common.text import reason_words

    words = dead_words(group)
    yield (
        f"{printable(group.fingerprint)}  {words} ({printable(reason_words(group.reason))}): "
        f"{short(group.headline)}"
    )
    first, last = (ago(max(0, now_ms - ms)) for ms in (group.first_ms, group.last_ms))
    more = ", ..." if group.count > len(group.indexes) else ""
    indexes = f"index {', '.join(map(str, group.indexes))}{more}"
    when = f"{last} ago" if group.count == 1 else f"first {first} ago, last {last} ago"
    where = f"{short(group.where)}; " if group.where else ""
    what = (group.call if group.count == 1 else None) or tasks_words(group.tasks)
    yield f"            {f'{short(what)}; ' if what else ''}{where}{indexes}; {when}"


def dead_words(group: DeadGroup | FailureGroup) -> str:
    """Returns how many are dead, and whether they are new since the newest release."""
    return coloured("dead", f"{group.count:,} dead") + (" (new)" if group.is_new else "")


def short(text: str, most: int = HEADLINE) -> str:
    """Returns the beginning of a text on one line."""
    shown = printable(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


# ------------------------------------------------------------------ unknown queue
# The hint about a queue that was never used on this Redis: its name may be mistyped.


def note_unknown(queue: Queue) -> None:
    """Notes that a queue was never used, and which one may be meant; the exit code stays."""
    if hint := unknown(queue):
        note(hint)


def unknown(queue: Queue) -> str:
    """Returns the hint; "" if the queue is known, or if it and no other one is on this Redis.

    It looks at about 100,000 keys. If this user may not do that, it also returns "".
    """
    from fairlane.common.text import join_names
    from fairlane.errors import FairlaneError
    from fairlane.operations.queues import is_known, similar_queues

    try:
        if queue.driver.run(is_known(queue.name)):
            return ""
        near, others = queue.driver.run(similar_queues(queue.name))
    except FairlaneError:
        return ""
    if not others or queue.name in {*near, *others}:  # its first request has just come
        return ""
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"others on it are {join_names(others)}"
    )
    return f"queue {queue.name} has never been used on this Redis; {hint}"


REQUESTS = ("REQUEST", "STATE", "PRIORITY", "DONE", "DEAD", "TOTAL", "HELD/LIMIT")
AGES = ("SUBMITTED", "ENDED")
TASK = "TASK"
_TASK_MOST = 60  # characters of its cell


class State(NamedTuple):
    """A cell in the colour of a state; its text is the state, unless it has another one."""

    state: str
    text: str | None = None

    def __str__(self) -> str:
        return self.state if self.text is None else self.text


Cell = str | State


def table(head: Sequence[str], body: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yields the lines of a table."""
    rows = list(body)
    texts = [[printable(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    yield bold(_line(texts[0], widths))
    for row, shown in zip(rows, texts[1:], strict=True):
        pads = [" " * (width - len(text)) for text, width in zip(shown, widths, strict=True)]
        cells = [
            (coloured(cell.state, text) if isinstance(cell, State) else text) + pad
            for cell, text, pad in zip(row, shown, pads, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _line(texts: Iterable[str], widths: Iterable[int]) -> str:
    cells = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
    return "  ".join(cells).rstrip()


def row_line(name: str, value: object, state: State | None = None) -> str:
    """Returns the line of one named value; `state`, in its colour, stands in front of it."""
    shown = coloured(state.state, str(state)) if state is not None else ""
    return f"{printable(name):<9} {shown}{printable(str(value))}"


def request_cells(request: RequestCounts) -> tuple[Cell, ...]:
    """Returns the cells below REQUESTS; an ended request holds nothing."""
    permits = "" if request.limit is None else f"{request.held}/{request.limit}"
    dead = f"{request.dead:,}"
    return (
        request.id,
        shown_state(request),
        *(f"{request.priority}", f"{request.done:,}"),
        State("dead", dead) if request.dead else dead,
        *(f"{request.total:,}", permits),
    )


def request_table(requests: Sequence[RequestCounts], now_ms: int | None = None) -> Iterator[str]:
    """Yields the lines of a table of requests, with their ages if it is `now_ms`.

    It has a column of tasks if any of these requests names some.
    """
    has_tasks = any(one.tasks for one in requests)
    head = (*REQUESTS, *(AGES if now_ms is not None else ()), *((TASK,) if has_tasks else ()))
    body = (
        (
            *request_cells(one),
            *(age_cells(one, now_ms) if now_ms is not None else ()),
            *((short(one.shown_tasks, _TASK_MOST),) if has_tasks else ()),
        )
        for one in requests
    )
    yield from table(head, body)


def age_cells(request: RequestCounts, now_ms: int) -> tuple[Cell, ...]:
    """Returns the cells below AGES."""
    return tuple(
        f"{ago(max(0, now_ms - ms))} ago" if ms else ""
        for ms in (request.submitted_ms, request.ended_ms)
    )


def task_rows(request: RequestCounts) -> Iterator[tuple[str, str]]:
    """Yields the row of a request's tasks; none if its producer named none."""
    if request.tasks:
        yield "task" if len(request.tasks) == 1 else "tasks", short(request.shown_tasks)


def shown_state(request: RequestCounts) -> State:
    """Returns the state for people, in its colour: how the request came out, if it has ended.

    It is `submitting` while an active request is not complete.
    """
    if request.is_open and request.state == "active":
        return State("submitting")
    return State(request.outcome or request.state, request.shown_state)
