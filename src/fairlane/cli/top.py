"""The application of `fairlane top`: a poller, and what it found, drawn once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from fairlane.common.text import of_queue, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from textual.app import ComposeResult

    from fairlane.live import Frame, Poller
    from fairlane.operations.observe import Snapshot


# ------------------------------------------------------------------ view
# What `fairlane top` shows, as text: it fits 80 columns, and nothing in it commands a terminal.


BAR = 24
NAME = 26  # characters of an id, at most
_LEAST_NAME = 10
_GAP = 2  # between two columns
_SPARK = "▁▂▃▄▅▆▇█"
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_SHORT = 10_000


class SortColumn(NamedTuple):
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
    about = "" if found.backlog.is_exact else "about "
    trend = found.backlog.trend
    return [
        f"waiting {about}{count(found.backlog.waiting)}{f'   {trend}' if trend else ''}",
        f"done    {rate(rates.done):<10} failed {rate(rates.failed):<9} {line}",
        f"waited  {times:<28} oldest {oldest}",
        f"workers {totals.busy} of {totals.alive} busy{late}   {calls}",
        f"requests {count(found.unfinished)}   {counts}{part}",
    ]


def lane_lines(found: Snapshot, most: int) -> list[str]:
    """Returns a bar for each priority with something in it, the most urgent first."""
    busy = [one for one in found.lanes if one.waiting or one.tokens or one.held]
    largest = max((one.waiting for one in busy), default=0) or 1
    lines = [
        f"{one.priority:>4} "
        f"{'█' * max(one.waiting > 0, round(BAR * one.waiting / largest)):<{BAR}} "
        f"{count(one.waiting):>7} wait {one.held:>5} held {count(one.tokens):>5} tokens"
        for one in busy[:most]
    ]
    if len(busy) > most:
        lines[-1] = f"     ... and {len(busy) - most + 1} less urgent priorities"
    return lines or ["     nothing waits and nothing runs"]


def _state(one: Any) -> str:
    if one.state != "active":
        return str(one.shown_state)
    return "working" if one.held else "waiting"


def _health(one: Any) -> str:
    if not one.is_alive:
        return "LATE"
    return "working" if one.leases else "idle"


def _falling(head: str, key: Callable[[Any], Any], shown: Callable[[Any], str]) -> SortColumn:
    """Returns a column of numbers; sorted by it, the largest comes first."""
    return SortColumn(head, key, shown, falls=True, is_number=True)


_TASK = SortColumn("TASK", lambda one: one.shown_tasks, lambda one: clipped(one.shown_tasks, 24))
REQUESTS = (
    SortColumn("REQUEST", lambda one: one.id, lambda one: one.id),
    SortColumn("PRIO", lambda one: one.priority, lambda one: str(one.priority), is_number=True),
    SortColumn("STATE", _state, _state),
    _falling("HELD", lambda one: one.held, lambda one: f"{one.held}/{one.limit}"),
    _falling("WAITING", lambda one: one.waiting, lambda one: count(one.waiting)),
    _falling("DONE", lambda one: one.done, lambda one: count(one.done)),
    _falling("DEAD", lambda one: one.dead, lambda one: count(one.dead)),
    _TASK,
    SortColumn("TENANT", lambda one: one.tenant or "", lambda one: clipped(one.tenant or "", 12)),
)
WORKERS = (
    SortColumn("WORKER", lambda one: one.id, lambda one: one.id),
    SortColumn("HEALTH", lambda one: not one.is_alive, _health, falls=True),
    _falling("BEAT", lambda one: one.beat_age_ms, lambda one: span(one.beat_age_ms)),
    _falling("HELD", lambda one: one.leases, lambda one: f"{one.leases}/{one.units or '-'}"),
    _falling("PACE", lambda one: one.per_s or 0.0, lambda one: rate(one.per_s)),
    SortColumn(
        "VERSION", lambda one: one.version or "", lambda one: clipped(one.version or "-", 10)
    ),
    SortColumn(
        "RELEASE", lambda one: one.release or "", lambda one: clipped(one.release or "-", 12)
    ),
    SortColumn("HOST", lambda one: one.host or "", lambda one: clipped(one.host or "-", 14)),
)


KEYS = [
    "Enter  the request or worker in full     /  filter by a part of an id, task or tenant",
    "s      sort by the next column           w  workers instead of requests, or back",
    "p      pause the view, or go on          Escape  all rows, or close this",
    "q      quit                              ?  these keys",
]


def details(columns: Sequence[SortColumn], one: Any, queue: str) -> list[str]:
    """Returns the lines about a request or a worker: each column in full, and what to ask next."""
    lines = [f"{column.name.lower():<9} {_whole(column, one)}" for column in columns]
    if columns[0] is REQUESTS[0]:
        option = of_queue(queue)
        lines += ["", f"fairlane why {one.id}{option}", f"fairlane status {one.id}{option}"]
    return lines


def _whole(column: SortColumn, one: Any) -> str:
    value = column.value(one)
    return value if isinstance(value, str) else column.text(one)


def cells_of(
    columns: Sequence[SortColumn], rows: Iterable[Any], wanted: str, sort: int, most: int
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
    names = ("shown_tasks", "tenant", "host", "state")
    return tuple(str(getattr(one, name, "") or "") for name in names)


def fitting(
    columns: Sequence[SortColumn], cells: Sequence[Sequence[str]], width: int
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


_MOST_ROWS = 200
_LANES = 5
_LEAST_LINES = 16  # of a terminal that has room for the lanes, too
_BAR = 2  # columns of the scroll bar
_STYLE = """
Screen { layout: vertical; }
#title, #summary, #lanes { text-wrap: nowrap; text-overflow: ellipsis; }
#title { height: 1; text-style: bold; }
#banner { height: auto; text-style: bold reverse; display: none; }
#summary { height: 5; }
#lanes { height: 5; margin: 0 0 1 0; }
#rows { height: 1fr; }
#filter { height: 1; border: none; display: none; padding: 0; }
#filter.open { display: block; }
Note { align: center middle; }
Note VerticalScroll {
    width: 72; max-width: 90%; height: auto; max-height: 80%; padding: 0 1; border: round $primary;
}
"""


class Note(ModalScreen[None]):
    """Shows lines above the table until a key closes it."""

    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding(key, "dismiss", "Close") for key in ("escape", "enter", "q", "question_mark")
    ]

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._text = _lines(lines)

    def compose(self) -> ComposeResult:
        """Makes the box."""
        with VerticalScroll():
            yield Static(self._text, id="note")


class Top(App[None]):
    """Shows a queue until q is pressed. `place` is where its Redis is."""

    CSS = _STYLE
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause view"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("w", "turn", "Workers/requests"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("escape", "clear", "Clear", show=False),
    ]

    def __init__(self, poller: Poller, name: str, place: str) -> None:
        super().__init__()
        self._poller, self._name, self._place = poller, printable(name), printable(place)
        self._is_paused = self._shows_workers = False
        self._sorts = {False: 1, True: 0}  # by whether workers are shown
        self._ids: list[str] = []  # of the rows of the table
        self._shown = 1  # columns that the terminal has room for
        self._seen: tuple[Snapshot, list[Frame]] | None = None

    def compose(self) -> ComposeResult:
        """Makes the parts of the screen."""
        yield Static(id="title")
        yield Static(id="banner")
        yield Static(id="summary")
        yield Static(id="lanes")
        yield DataTable[Text](id="rows", cursor_type="row")
        yield Input(id="filter", placeholder="part of an id, task, tenant or host; Enter closes")
        yield Footer()

    def on_resize(self) -> None:
        """Draws for the new width."""
        self._draw()

    def on_mount(self) -> None:
        """Begins to watch."""
        self._draw()
        self.query_one(DataTable).focus()
        self.run_worker(self._watch(), exclusive=True)

    async def _watch(self) -> None:
        seen = -1
        async with self._poller.watching():
            if not self._poller.changes:
                seen = 0
            while True:
                seen = await self._poller.next_change(seen)
                if not self._is_paused:
                    self._look()
                self._draw()

    def _look(self) -> None:
        latest = self._poller.latest
        if latest is not None and self._poller.frames:
            self._seen = latest, list(self._poller.frames)

    def _draw(self) -> None:
        away = self._poller.away
        banner = self.query_one("#banner", Static)
        banner.display = bool(away)
        if away:
            banner.update(Text(printable(f"{away}; trying again")))
        self.query_one("#title", Static).update(Text(self._title()))
        if self._seen is None:
            return
        found, frames = self._seen
        self.query_one("#summary", Static).update(_lines(summary(found, frames)))
        lanes = self.query_one("#lanes", Static)
        lanes.display = self.size.height >= _LEAST_LINES
        lanes.update(_lines(lane_lines(found, _LANES)))
        self._draw_rows(found)

    def _title(self) -> str:
        parts = [f"fairlane top  {self._name} at {self._place}"]
        if self._seen is None:
            parts.append("(reading)")
        elif self._seen[0].is_paused:
            parts.append("QUEUE PAUSED")
        if self._is_paused:
            parts.append("VIEW PAUSED: p goes on")
        return "  ".join(parts)

    def _draw_rows(self, found: Snapshot) -> None:
        table = self.query_one(DataTable)
        columns, rows = self._shown_rows(found)
        sort = self._sorts[self._shows_workers]
        wanted = self.query_one("#filter", Input).value
        cells, more = cells_of(columns, rows, wanted, sort, _MOST_ROWS)
        self._ids = [row[0] for row in cells]
        at = table.cursor_row
        shown, name = fitting(columns, cells, self.size.width - _BAR)
        self._shown = shown
        table.clear(columns=True)
        for place, column in enumerate(columns[:shown]):
            table.add_column(_cell(f"{column.name}{'*' if place == sort else ''}", column))
        for row in cells:
            texts = (clipped(row[0], name), *row[1:shown])
            table.add_row(*map(_cell, texts, columns))
        if more:
            table.add_row(Text(f"... {more:,} more"), *[Text("")] * (shown - 1))
        if cells:
            table.move_cursor(row=min(at, len(cells) - 1), animate=False)

    def _shown_rows(self, found: Snapshot) -> tuple[Sequence[SortColumn], Sequence[Any]]:
        """Returns the columns and the rows; TASK is left out if no request names a task."""
        if self._shows_workers:
            return WORKERS, found.workers
        if any(one.tasks for one in found.requests):
            return REQUESTS, found.requests
        return [one for one in REQUESTS if one is not _TASK], found.requests

    def action_pause(self) -> None:
        """Stops the view or continues it; the history is read meanwhile."""
        self._is_paused = not self._is_paused
        if not self._is_paused:
            self._look()
        self._draw()

    def action_filter(self) -> None:
        """Opens the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def action_clear(self) -> None:
        """Closes the filter and shows all rows."""
        field = self.query_one("#filter", Input)
        field.value = ""
        self._close(field)

    def on_input_submitted(self) -> None:
        """Closes the filter and keeps it."""
        self._close(self.query_one("#filter", Input))

    def on_input_changed(self) -> None:
        """Draws the rows that the filter finds."""
        self._draw()

    def _close(self, field: Input) -> None:
        field.set_class(bool(field.value), "open")
        self.query_one(DataTable).focus()
        self._draw()

    def action_sort(self) -> None:
        """Sorts by the next column; a star marks it."""
        self._sorts[self._shows_workers] = (self._sorts[self._shows_workers] + 1) % self._shown
        self._draw()

    def action_keys(self) -> None:
        """Shows what each key does."""
        self.push_screen(Note(KEYS))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Shows a request or a worker in full."""
        if self._seen is None or event.cursor_row >= len(self._ids):
            return
        found, name = self._seen[0], self._ids[event.cursor_row]
        columns, rows = self._shown_rows(found)
        for one in rows:
            if printable(one.id) == name:
                self.push_screen(Note(details(columns, one, self._name or "")))
                return

    def action_turn(self) -> None:
        """Shows the workers instead of the requests, or back."""
        self._shows_workers = not self._shows_workers
        self._draw()


def _lines(lines: list[str]) -> Text:
    return Text("\n".join(map(printable, lines)))


def _cell(text: str, column: SortColumn) -> Text:
    return Text(text, justify="right" if column.is_number else "left")
