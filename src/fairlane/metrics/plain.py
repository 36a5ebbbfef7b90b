"""Writes metrics as text, for a process that has the standard library alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.metrics.definitions import Metric

MEDIA = "text/plain; version=0.0.4"


def text_of(queue: str, values: Iterable[tuple[Metric, float]]) -> str:
    """Returns one sample of each metric. No name of a queue has a character to escape."""
    lines = []
    for metric, value in values:
        lines += [
            f"# HELP {metric.name} {metric.help}",
            f"# TYPE {metric.name} {metric.kind}",
            f'{metric.name}{{queue="{queue}"}} {value + 0}',  # True is 1
        ]
    return "\n".join(lines) + "\n"
