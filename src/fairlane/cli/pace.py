"""How fast it goes, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model import Progress


def eta(now: Progress, rate: float | None) -> str:
    """How long the rest will take at this rate, as h:mm:ss."""
    if not rate:
        return "-:--:--"
    minutes, seconds = divmod(round(now.left / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
