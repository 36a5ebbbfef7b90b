"""Tables and rows as lines: columns of equal width, states in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.cli.display.colours import bold, coloured
from fairlane.cli.durations import ago
from fairlane.common.terminal import printable
from fairlane.model import Completion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.model import Progress

REQUESTS = ("REQUEST", "STATE", "PRIORITY", "DONE", "DEAD", "TOTAL", "HELD/LIMIT")
AGES = ("SUBMITTED", "ENDED")


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


def row_line(name: str, value: object, state: str = "") -> str:
    """Returns the line of one named value; `state`, in its colour, stands in front of it."""
    return f"{printable(name):<9} {coloured(state)}{printable(str(value))}"


def request_cells(request: Progress | Completion) -> tuple[Cell, ...]:
    """Returns the cells below REQUESTS; an ended request holds nothing."""
    permits = "" if isinstance(request, Completion) else f"{request.held}/{request.limit}"
    dead = f"{request.dead:,}"
    return (
        request.id,
        State(shown_state(request)),
        *(f"{request.priority}", f"{request.done:,}"),
        State("dead", dead) if request.dead else dead,
        *(f"{request.total:,}", permits),
    )


def age_cells(request: Progress | Completion, now_ms: int) -> tuple[Cell, ...]:
    """Returns the cells below AGES."""
    return tuple(
        f"{ago(max(0, now_ms - ms))} ago" if ms else ""
        for ms in (request.submitted_ms, request.ended_ms)
    )


def shown_state(request: Progress | Completion) -> str:
    """Returns the state for people: `submitting` while an active request is not complete."""
    if isinstance(request, Completion) or not request.is_open or request.state != "active":
        return request.state
    return "submitting"
