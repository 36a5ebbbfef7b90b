"""Durations in words."""

from __future__ import annotations


def eta(left: float, rate: float | None) -> str:
    """Returns how long the rest takes at this rate, as h:mm:ss."""
    if not rate:
        return "-:--:--"
    minutes, seconds = divmod(round(left / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def ago(ms: int) -> str:
    """Returns a duration in its two largest units."""
    if ms < 1000:  # noqa: PLR2004  a second
        return f"{ms} ms"
    seconds = ms // 1000
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)
