"""What `fairlane top` shows, as text: it fits 80 columns, and nothing in it commands a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.terminal import printable
from fairlane.common.text import of_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from fairlane.live.frames import Frame
    from fairlane.operations.observe import Snapshot

BAR = 24
NAME = 26  # characters of an id, at most
_LEAST_NAME = 10
_GAP = 2  # between two columns
_SPARK = "▁▂▃▄▅▆▇█"
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_SHORT = 10_000


class Column(NamedTuple):
    """One column of a table: its heading, the value of a row by which it sorts, and its text.

    `falls`: the largest value comes first. `is_number`: it stands at the right of its column.
    """

    name: str
    value: Callable[[Any], Any]
    text: Callable[[Any], str]
    falls: bool = False
    is_number: bool = False


def span(ms: float) -> str:
    """Returns a length of time in one unit: 350ms, 4.2s, 12m."""
    for size, name in _UNITS:
        if ms >= size:
            value = ms / size
            return f"{value:.1f}{name}" if value < 10 else f"{value:.0f}{name}"  # noqa: PLR2004
    return f"{ms:.0f}ms"


def count(value: float) -> str:
    """Returns 9,999 or 12.3k."""
    if value < _SHORT:
        return f"{value:,.0f}"
    for size, name in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.1f}{name}"
    return f"{value / 1e3:.1f}k"


def rate(value: float | None) -> str:
    """Returns 12.5/s; a dash if it is not known yet."""
    if value is None:
        return "-"
    return f"{value:.1f}/s" if value < 10 else f"{count(value)}/s"  # noqa: PLR2004


def spark(values: Sequence[float], width: int) -> str:
    """Returns a line of bars, the newest last."""
    shown = list(values)[-width:]
    most = max(shown, default=0) or 1
    return "".join(_SPARK[min(7, int(8 * value / most))] for value in shown)


def summary(found: Snapshot, frames: Sequence[Frame]) -> list[str]:
    """Returns the lines about the queue as a whole."""
    last = frames[-1]
    rates, totals = last.rates, found.worker_totals
    waited = rates.waited_ms
    times = f"median {span(waited[0])}  99% {span(waited[2])}" if waited else "-"
    oldest = f"{span(last.oldest_ms)}  {clipped(found.oldest.id, NAME)}" if found.oldest else "-"
    late = f"  {totals.late} LATE" if totals.late else ""
    line = spark([one.rates.done or 0 for one in frames], 24)
    calls = f"calls {last.held} of {totals.units}   wanted {count(last.held + last.demand)}"
    memory = f"memory {last.used / (1 << 20):,.0f} MiB"
    counts = f"delayed {count(last.delayed)}   dead {count(last.dead)}   {memory}"
    part = "" if found.is_exact else "   (a part of the requests)"
    return [
        f"done    {rate(rates.done):<10} failed {rate(rates.failed):<9} {line}",
        f"waited  {times:<28} oldest {oldest}",
        f"workers {totals.busy} of {totals.alive} busy{late}   {calls}",
        f"requests {count(found.unfinished)}   {counts}{part}",
    ]


def lanes(found: Snapshot, most: int) -> list[str]:
    """Returns a bar for each priority with something in it, the most urgent first."""
    busy = [one for one in found.lanes if one.tokens or one.held]
    largest = max((one.tokens for one in busy), default=0) or 1
    lines = [
        f"{one.priority:>4} {'█' * max(one.tokens > 0, round(BAR * one.tokens / largest)):<{BAR}} "
        f"{count(one.tokens):>7} wait {one.held:>5} held"
        for one in busy[:most]
    ]
    if len(busy) > most:
        lines[-1] = f"     ... and {len(busy) - most + 1} less urgent priorities"
    return lines or ["     nothing waits and nothing runs"]


def _state(one: Any) -> str:
    if one.state != "active":
        return str(one.state)
    return "working" if one.held else "waiting"


def _health(one: Any) -> str:
    if not one.is_alive:
        return "LATE"
    return "working" if one.leases else "idle"


def _falling(head: str, key: Callable[[Any], Any], shown: Callable[[Any], str]) -> Column:
    """Returns a column of numbers; sorted by it, the largest comes first."""
    return Column(head, key, shown, falls=True, is_number=True)


REQUESTS = (
    Column("REQUEST", lambda one: one.id, lambda one: one.id),
    Column("PRIO", lambda one: one.priority, lambda one: str(one.priority), is_number=True),
    Column("STATE", _state, _state),
    _falling("HELD", lambda one: one.held, lambda one: f"{one.held}/{one.limit}"),
    _falling("WAITING", lambda one: one.waiting, lambda one: count(one.waiting)),
    _falling("DONE", lambda one: one.done, lambda one: count(one.done)),
    _falling("DEAD", lambda one: one.dead, lambda one: count(one.dead)),
    Column("TENANT", lambda one: one.tenant, lambda one: clipped(one.tenant, 12)),
)
WORKERS = (
    Column("WORKER", lambda one: one.id, lambda one: one.id),
    Column("HEALTH", lambda one: not one.is_alive, _health, falls=True),
    _falling("BEAT", lambda one: one.beat_age_ms, lambda one: span(one.beat_age_ms)),
    _falling("HELD", lambda one: one.leases, lambda one: f"{one.leases}/{one.units}"),
    _falling("PACE", lambda one: one.per_s, lambda one: rate(one.per_s or None)),
    Column("VERSION", lambda one: one.release, lambda one: clipped(one.release or "-", 10)),
    Column("HOST", lambda one: one.host, lambda one: clipped(one.host or "-", 14)),
)


KEYS = [
    "Enter  the request or worker in full     /  filter by a part of an id, tenant or host",
    "s      sort by the next column           w  workers instead of requests, or back",
    "p      pause the view, or go on          Escape  all rows, or close this",
    "q      quit                              ?  these keys",
]


def details(columns: Sequence[Column], one: Any, queue: str) -> list[str]:
    """Returns the lines about a request or a worker: each column in full, and what to ask next."""
    lines = [f"{column.name.lower():<9} {_whole(column, one)}" for column in columns]
    if columns is REQUESTS:
        option = of_queue(queue)
        lines += ["", f"fairlane why {one.id}{option}", f"fairlane status {one.id}{option}"]
    return lines


def _whole(column: Column, one: Any) -> str:
    value = column.value(one)
    return value if isinstance(value, str) else column.text(one)


def table(
    columns: Sequence[Column], rows: Iterable[Any], wanted: str, sort: int, most: int
) -> tuple[list[tuple[str, ...]], int]:
    """Returns the cells of the rows that contain `wanted`, and how many others there are.

    `sort` is the place of a column.
    """
    column, first = columns[sort], columns[0]
    found = [
        one
        for one in rows
        if wanted.lower() in " ".join((str(first.value(one)), *_more(one))).lower()
    ]
    found.sort(key=column.value, reverse=column.falls)
    shown = [tuple(printable(one.text(row)) for one in columns) for row in found[:most]]
    return shown, len(found) - len(shown)


def _more(one: Any) -> tuple[str, ...]:
    """Returns what else of a row a filter finds."""
    names = ("tenant", "host", "state")
    return tuple(str(getattr(one, name, "")) for name in names)


def fitting(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> tuple[int, int]:
    """Returns how many of the columns fit into a terminal, and how long their names may be.

    The name, which is the first column, becomes shorter first; then the last columns are left out.
    """
    widths = [
        max([len(one.name) + 1, *(len(row[place]) for row in cells)]) + _GAP
        for place, one in enumerate(columns)
    ]
    shown = len(columns)
    while shown > 1 and width - sum(widths[1:shown]) < _LEAST_NAME + _GAP:
        shown -= 1
    return shown, max(_LEAST_NAME, min(NAME, width - sum(widths[1:shown]) - _GAP))


def clipped(text: str, most: int) -> str:
    """Returns a text that is at most so long, with its beginning and its end."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"
