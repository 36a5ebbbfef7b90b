"""Divides what the report shows: time into windows, priorities into bands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  the usual name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column

    from fairlane.spark.report.tables import Rows


# ------------------------------------------------------------------ time windows
# The windows of time that a report is made of, and the shape of its tables.


FAIR_S = 1.0  # a shorter window holds too few slices to compare requests
_WINDOWS = 120  # at most
_SHORT_WINDOWS = 40  # at most, below a second: a window should hold several slices of 20 ms
_WIDTHS_S = (
    *(0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400, 172_800, 604_800, 2_592_000),
)
_MICRO = 1_000_000


class Axis(NamedTuple):
    """The windows: the first begins at `start_us`, each is `width_us` long."""

    start_us: int
    width_us: int
    windows: int

    @classmethod
    def spanning(cls, low_us: int, high_us: int) -> Axis:
        """Returns windows of a round width that hold both moments."""
        span_s = (high_us - low_us) / _MICRO
        width_s = next((w for w in _WIDTHS_S if span_s / w < _most(w) - 1), _WIDTHS_S[-1])
        width_us = round(width_s * _MICRO)
        start_us = low_us // width_us * width_us
        return cls(start_us, width_us, (high_us - start_us) // width_us + 1)

    def at_least(self, width_s: float) -> Axis:
        """Returns windows that are no shorter than `width_s` and end within these."""
        width_us = max(self.width_us, round(width_s * _MICRO))
        return Axis(self.start_us, width_us, self.width_us * self.windows // width_us)

    def of(self, micros: Column) -> Column:
        """Returns the number of the window that a moment is in."""
        return F.floor((micros - F.lit(self.start_us)) / F.lit(self.width_us)).cast("int")


def _most(width_s: float) -> int:
    return _WINDOWS if width_s >= 1 else _SHORT_WINDOWS


# ------------------------------------------------------------------ bands
# Priorities as the few series that a plot and a table can show: each alone, or in bands.


ALONE = 8  # so many priorities get a series each
_BANDS = 6  # at most
_SIZES = (2, 5, 10, 20)  # of a band; the last makes five bands of all 100 priorities


class Bands:
    """Holds the series of a report. A series' key is the first priority that it could hold."""

    def __init__(self, priorities: Iterable[int | None]) -> None:
        self.priorities = sorted({priority for priority in priorities if priority is not None})
        self.size = 1
        if len(self.priorities) > ALONE:
            self.size = next(size for size in _SIZES if len(self._keys(size)) <= _BANDS)
        self.keys = self._keys(self.size)

    @classmethod
    def of(cls, tables: Mapping[str, Rows]) -> Bands:
        """Returns the bands of all priorities that a report names."""
        rows = [*tables["requests"], *tables.get("priorities", [])]
        return cls(row["priority"] for row in rows)

    def _keys(self, size: int) -> list[int]:
        return sorted({priority // size * size for priority in self.priorities})

    def key(self, priority: Any) -> Any:
        """Returns the key of a priority's series: of a number, or of a column as a column."""
        return priority - priority % self.size

    def name(self, key: int) -> str:
        """Returns how a series is called, such as "20 to 39"; one priority is called by itself."""
        members = [priority for priority in self.priorities if self.key(priority) == key]
        return str(members[0]) if len(members) == 1 else f"{key} to {key + self.size - 1}"

    def group(self, rows: Rows, *by: str) -> list[Rows]:
        """Returns the rows in groups of one series and equal values of `by`, in that order."""
        groups: dict[tuple[Any, ...], Rows] = {}
        for row in rows:
            key = (self.key(row["priority"]), *(row[name] for name in by))
            groups.setdefault(key, []).append(row)
        return [groups[key] for key in sorted(groups)]

    def total(self, group: Rows, *names: str) -> dict[str, Any]:
        """Returns the sums of a group of one series, with the series' key as its priority."""
        sums = {name: sum(row[name] for row in group) for name in names}
        return {**group[0], **sums, "priority": self.key(group[0]["priority"])}
