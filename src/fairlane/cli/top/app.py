"""The application of `fairlane top`: a poller, and what it found, drawn once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from fairlane.cli.top import view
from fairlane.common.terminal import printable

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from fairlane.live.frames import Frame
    from fairlane.live.poller import Poller
    from fairlane.operations.observe import Snapshot

_MOST_ROWS = 200
_LANES = 5
_LEAST_LINES = 16  # of a terminal that has room for the lanes, too
_BAR = 2  # columns of the scroll bar
_STYLE = """
Screen { layout: vertical; }
#title, #summary, #lanes { text-wrap: nowrap; text-overflow: ellipsis; }
#title { height: 1; text-style: bold; }
#banner { height: auto; text-style: bold reverse; display: none; }
#summary { height: 4; }
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
        yield Input(id="filter", placeholder="part of an id, tenant or host; Enter closes")
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
        self.query_one("#summary", Static).update(_lines(view.summary(found, frames)))
        lanes = self.query_one("#lanes", Static)
        lanes.display = self.size.height >= _LEAST_LINES
        lanes.update(_lines(view.lanes(found, _LANES)))
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
        columns = view.WORKERS if self._shows_workers else view.REQUESTS
        rows = found.workers if self._shows_workers else found.requests
        sort = self._sorts[self._shows_workers]
        wanted = self.query_one("#filter", Input).value
        cells, more = view.table(columns, rows, wanted, sort, _MOST_ROWS)
        self._ids = [row[0] for row in cells]
        at = table.cursor_row
        shown, name = view.fitting(columns, cells, self.size.width - _BAR)
        self._shown = shown
        table.clear(columns=True)
        for place, column in enumerate(columns[:shown]):
            table.add_column(_cell(f"{column.name}{'*' if place == sort else ''}", column))
        for row in cells:
            texts = (view.clipped(row[0], name), *row[1:shown])
            table.add_row(*map(_cell, texts, columns))
        if more:
            table.add_row(Text(f"... {more:,} more"), *[Text("")] * (shown - 1))
        if cells:
            table.move_cursor(row=min(at, len(cells) - 1), animate=False)

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
        self.push_screen(Note(view.KEYS))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Shows a request or a worker in full."""
        if self._seen is None or event.cursor_row >= len(self._ids):
            return
        found, name = self._seen[0], self._ids[event.cursor_row]
        rows = found.workers if self._shows_workers else found.requests
        columns = view.WORKERS if self._shows_workers else view.REQUESTS
        for one in rows:
            if printable(one.id) == name:
                self.push_screen(Note(view.details(columns, one, self._name or "")))
                return

    def action_turn(self) -> None:
        """Shows the workers instead of the requests, or back."""
        self._shows_workers = not self._shows_workers
        self._draw()


def _lines(lines: list[str]) -> Text:
    return Text("\n".join(map(printable, lines)))


def _cell(text: str, column: view.Column) -> Text:
    return Text(text, justify="right" if column.is_number else "left")
