"""The texts of the page: its headline, the tiles, and the names of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.fingerprint import read_failure
from fairlane.spark.report.numbers import NOTHING, duration, number, share

if TYPE_CHECKING:
    from collections.abc import Mapping

_WELL = 0.99  # of the targets
_FAIR = 0.9  # Jain's index
NO_BREAK = "\u00a0"
_LONG = 90  # characters of a failure's name


class Tile(NamedTuple):
    """A number at the head of the page; `mood` is good, bad or nothing."""

    name: str
    value: str
    note: str
    mood: str = ""


def headline(summary: Mapping[str, Any]) -> str:
    """Returns one sentence: how much was done, how fast while there was work."""
    settled = summary["done"] + summary["dead"]
    text = f"{settled:,} sub-requests of {_plural(summary['requests'], 'request')}"
    if "finished" in summary:
        text += f", {number(summary['per_s'])} per second of busy time"
    return text


def tiles(summary: Mapping[str, Any]) -> list[Tile]:
    """Returns the tiles that there are numbers for."""
    dead = summary["dead"]
    settled = max(1, summary["done"] + dead)
    dead_tile = [
        Tile(
            "dead",
            f"{dead:,}",
            share(dead / settled) if dead else "nothing was given up",
            "bad" if dead else "good",
        )
    ]
    if "finished" not in summary:
        return dead_tile
    return [
        Tile("per second", number(summary["per_s"]), f"at best {number(summary['peak_per_s'])}"),
        Tile(
            "95 % within",
            duration(summary["total_p95_ms"]),
            f"half in {duration(summary['total_p50_ms'])}".replace(" ", NO_BREAK),
        ),
        *_judged(summary),
        Tile(
            "token use",
            _share(summary["token_use"]),
            f"by {_plural(summary['workers'], 'worker')}",
        ),
        *dead_tile,
        Tile("retries", f"{summary['retries']:,}", f"of {summary['finished']:,} settled"),
    ]


def _judged(summary: Mapping[str, Any]) -> list[Tile]:
    met, jain = summary["attainment"], summary["jain"]
    takes, inverted = summary["takes"], summary["inverted_takes"]
    judged = []
    if met is not None:
        judged.append(Tile("within target", share(met), "", "good" if met >= _WELL else "bad"))
    if jain is not None:
        note = f"at worst {summary['jain_worst']:.2f}"
        judged.append(Tile("fairness", f"{jain:.2f}", note, "good" if jain >= _FAIR else "bad"))
    if takes:
        judged.append(
            Tile(
                "inverted takes",
                f"{inverted:,}",
                f"of {takes:,}",
                "bad" if inverted else "good",
            )
        )
    return judged


def _share(value: float | None) -> str:
    return NOTHING if value is None else share(value)


def _plural(many: int, noun: str) -> str:
    return f"{many:,} {noun}" if many == 1 else f"{many:,} {noun}s"


def dead_headline(row: Mapping[str, Any]) -> str:
    """Returns the failure of a group of dead sub-requests in one line."""
    text = read_failure(row["error"] or "").headline
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"
