"""Tables of the page."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003  a field of a NamedTuple
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.spark.report.numbers import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.spark.report.time_windows import Rows


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
    """Returns a table, or "" without rows."""
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
