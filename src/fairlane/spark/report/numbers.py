"""Formats the report's numbers for people."""

from __future__ import annotations

from fairlane.common.text import figure

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


def count(value: float) -> str:
    """Returns a whole number as text."""
    return f"{value:,.0f}"


def share(value: float) -> str:
    """Returns a share in percent; never 100 % or 0 % for another value."""
    if 0.9995 <= value < 1:  # noqa: PLR2004
        return "> 99.9 %"
    if 0 < value < 0.0005:  # noqa: PLR2004
        return "< 0.1 %"
    return f"{100 * value:.1f} %" if value < 1 else f"{100 * value:.0f} %"
