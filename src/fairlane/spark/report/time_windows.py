"""The windows of time that a report is made of, and the shape of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  the usual name

if TYPE_CHECKING:
    from pyspark.sql import Column

Rows = list[dict[str, Any]]
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
