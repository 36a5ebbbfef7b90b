"""Priorities as the few series that a plot and a table can show: each alone, or in bands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlane.spark.report.time_windows import Rows

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
