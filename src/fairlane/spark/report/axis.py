"""The windows of time that a report is made of, and the shape of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

if TYPE_CHECKING:
    from pyspark.sql import Column

Rows = list[dict[str, Any]]


class Axis(NamedTuple):
    """The windows: the first begins at `start_us`, each is `width_us` long."""

    start_us: int
    width_us: int
    windows: int

    def of(self, micros: Column) -> Column:
        """The number of the window that a moment is in."""
        return F.floor((micros - F.lit(self.start_us)) / F.lit(self.width_us)).cast("int")
