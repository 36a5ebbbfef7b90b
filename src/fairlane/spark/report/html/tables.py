"""Tables of the page, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003  a field of a NamedTuple
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.spark.report.time_windows import Rows

NOTHING = "–"  # noqa: RUF001  a dash
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


class Column(NamedTuple):
    """A column: the row's key, its heading, and how a value is shown.

    Numbers stand on the right, text (`is_text`) on the left. `is_html`: what `show` returns is
    HTML already.
    """

    key: str
    heading: str
    show: Callable[[Any], str]
    is_text: bool = False
    is_html: bool = False


def table_of(rows: Rows, columns: Sequence[Column], note: str = "") -> str:
    """A table, or nothing where there are no rows."""
    if not rows:
        return ""
    sides = ["text" if column.is_text else "number" for column in columns]
    heads = "".join(
        f"<th class='{side}'>{escape(column.heading)}</th>"
        for side, column in zip(sides, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td class='{side}'>{_cell(column, row.get(column.key))}</td>"
            for side, column in zip(sides, columns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    below = f"<p class='dim'>{escape(note)}</p>" if note else ""
    return (
        f"<div class='scroll'><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{below}"
    )


def _cell(column: Column, value: Any) -> str:
    if column.is_html:
        return column.show(value)
    return NOTHING if value is None else escape(column.show(value))


def duration(ms: float | None) -> str:
    """Milliseconds as people say it: 0.4 ms, 12 ms, 3.4 s, 5.2 min, 3.1 h."""
    if ms is None:
        return NOTHING
    unit, size = next(((unit, size) for unit, size in _UNITS if abs(ms) >= size), _UNITS[-1])
    return f"{number(ms / size)} {unit}"


def number(value: float) -> str:
    """Two or three digits that count."""
    if value == round(value) or abs(value) >= 100:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def count(value: float) -> str:
    """A whole number."""
    return f"{value:,.0f}"


def share(value: float) -> str:
    """A share in percent; never 100 % or 0 % when it is not."""
    if 0.9995 <= value < 1:  # noqa: PLR2004
        return "> 99.9 %"
    if 0 < value < 0.0005:  # noqa: PLR2004
        return "< 0.1 %"
    return f"{100 * value:.1f} %" if value < 1 else f"{100 * value:.0f} %"
