"""Divides time into windows and priorities into bands, and formats numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.text import figure

if TYPE_CHECKING:
    from collections.abc import Iterable

FAIR_S = 1.0  # a shorter window holds too few slices to compare requests
ALONE = 8  # so many priorities get a series each
_MANY, _FEW = 120, 40  # windows at most; below a second few, because each should hold some slices
_BANDS = 6  # at most
_SIZES = (2, 5, 10, 20)  # of a band; the last makes five bands of all 100 priorities
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
        fitting = (w for w in _WIDTHS_S if span_s / w < (_MANY if w >= 1 else _FEW) - 1)
        width_us = round(next(fitting, _WIDTHS_S[-1]) * _MICRO)
        start_us = low_us // width_us * width_us
        return cls(start_us, width_us, (high_us - start_us) // width_us + 1)

    def at_least(self, width_s: float) -> Axis:
        """Returns windows that are no shorter than `width_s` and end within these."""
        width_us = max(self.width_us, round(width_s * _MICRO))
        return Axis(self.start_us, width_us, self.width_us * self.windows // width_us)

    @property
    def end_us(self) -> int:
        """Returns the end of the last window."""
        return self.start_us + self.width_us * self.windows


class Bands:
    """Holds the series of a report: priorities alone, or in bands of `size`.

    A series' key is the first priority that it could hold.
    """

    def __init__(self, priorities: Iterable[int]) -> None:
        self.priorities = sorted(set(priorities))
        self.size = 1
        if len(self.priorities) > ALONE:
            self.size = next(size for size in _SIZES if len(self._keys(size)) <= _BANDS)
        self.keys = self._keys(self.size)

    def _keys(self, size: int) -> list[int]:
        return sorted({priority // size * size for priority in self.priorities})

    def place(self, priority: int) -> int:
        """Returns the place of a priority's series among all."""
        return self.keys.index(priority - priority % self.size)

    def name(self, key: int) -> str:
        """Returns how a series is called, such as "20 to 39"; "5" for one priority."""
        members = [one for one in self.priorities if key <= one < key + self.size]
        return str(members[0]) if len(members) == 1 else f"{key} to {key + self.size - 1}"


# ------------------------------------------------------------------ numbers


NOTHING = "–"  # noqa: RUF001  a dash
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))


def duration(ms: float | None) -> str:
    """Returns milliseconds as text: 0.4 ms, 12 ms, 3.4 s, 5.2 min, 3.1 h."""
    if ms is None:
        return NOTHING
    unit, size = next(((unit, size) for unit, size in _UNITS if abs(ms) >= size), _UNITS[-1])
    return f"{number(ms / size)} {unit}"


def number(value: float) -> str:
    """Returns a number with two or three significant digits."""
    if value == round(value) or abs(value) >= 100:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else figure(value, 2)


def share(value: float) -> str:
    """Returns a share in percent; never 100 % or 0 % for another value."""
    if 0.9995 <= value < 1:  # noqa: PLR2004
        return "> 99.9 %"
    if 0 < value < 0.0005:  # noqa: PLR2004
        return "< 0.1 %"
    return f"{100 * value:.1f} %" if value < 1 else f"{100 * value:.0f} %"
