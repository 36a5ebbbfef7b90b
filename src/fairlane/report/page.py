"""Makes one page of HTML with everything in it: it needs no other file and no network."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fairlane.common.fingerprint import read_failure
from fairlane.common.text import plural, printable, reason_words
from fairlane.report.axes import FAIR_S, NOTHING, duration, number, share
from fairlane.report.plots import VARIABLES, colour_of
from fairlane.report.tables import GRACE_MS, MOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlane.report.tables import Figures

_WELL, _FAIR = 0.99, 0.9  # of the targets; Jain's index
_LONG = 90  # characters of a failure's name


def _clock(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _failure(error: str) -> str:
    """Returns a failure in one line."""
    text = read_failure(error).headline
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


# How the values of a column are shown, by the end of its name.
_KINDS: dict[str, Callable[[Any], str]] = {
    "_ms": duration,
    "_share": share,
    "_at": _clock,
    "reason": reason_words,
    "with": _failure,
}
_TEXTS = {  # of the sections: name of the plot -> heading and text
    "throughput": """Throughput
        Sub-requests that were settled, done or dead, by priority (0 is the most urgent).""",
    "latency": """How long it took
        Waited: until a worker took it for its last attempt, with the pauses before retries. Ran:
        in the handler, in that attempt. In total: from the submission to the end of it. The line
        is the 95th percentile, the dashed one the median.""",
    "targets": """Targets
        The share of what was settled that was done within its target; a dead sub-request has
        missed it.""",
    "requests": """Requests
        From submission to end: pale until the first sub-request started. Those that took
        longest.""",
    "tokens": """Tokens
        Tokens in use (a sub-request in its handler uses one) and what the limits of the requests
        that were there allowed. Requests that have not ended are not in the archive, and so not
        here.""",
    "fairness": f"""Fairness
        Between requests of one priority that were there for a whole window of at least
        {duration(FAIR_S * 1000)}, each measured by the share of its own limit that it used. 1: all
        had the same; 1/n: one of n had all.""",
    "inversions": f"""Priority inversions
        A worker takes a slice of a request in one step. The take is inverted when, for the
        {GRACE_MS} ms before it and still after it, a request of a more urgent priority was open to
        workers: a sub-request of it waited for its first attempt, and it held fewer slices than
        its limit. What is being worked on is never taken away, so shorter overlaps are no fault. A
        request that a person had paused looks as if it waited.""",
    "waits": """Longest waits
        How long the one that waited longest had waited, of those settled in each window.""",
    "dead": """Dead
        Sub-requests that were given up, by reason and by what they failed with.""",
}
_NO_TARGETS = "No targets were given: the share that was done within some times."
# The tables below a plot, with what a note says of the first rows if there are more.
_TABLES = {
    "latency": {"latency": "", "latency_each": ""},
    "targets": {"targets": "", "targets_each": ""},
    "requests": {"requests": "biggest"},
    "tokens": {"tokens": "that settled most"},
    "inversions": {"inversions": "", "inverted": ""},
    "waits": {"waits": ""},
    "dead": {"dead": "most frequent"},
}
_FILES = {"tokens": "workers"}


def page_of(figures: Figures, drawn: Mapping[str, str]) -> str:
    """Returns the page; `drawn` has the plots by name."""
    summary = figures.summary
    first, last = (summary[name].removesuffix("+00:00") for name in ("from", "to"))
    span = f"{first} to {last.removeprefix(f'{first[:10]}T')}".replace("T", " ")
    settled = f"{summary['done'] + summary['dead']:,} sub-requests of "
    settled += plural(summary["requests"], "request")
    if "finished" in summary:
        settled += f", {number(summary['per_s'])} per second of busy time"
    style = files(__package__).joinpath("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Queue report, {first[:10]}</title><style>{style}</style></head><body><main>"
        f"<header><p class='kicker'>Queue report</p><h1>{settled}</h1><p class='dim'>{span} UTC, "
        f"in windows of {duration(summary['window_s'] * 1000)}</p></header>"
        f"<div class='tiles'>{''.join(_tiles(summary))}</div>{''.join(_sections(figures, drawn))}"
        f"<footer>{_foot(summary)} Made by Fairlane, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
        "</footer></main></body></html>\n"
    )


def _tiles(summary: Mapping[str, Any]) -> list[str]:
    """Returns the tiles that there are numbers for: value, name, note, and is it good."""
    dead, found = summary["dead"], []
    lost = share(dead / max(1, summary["done"] + dead)) if dead else "nothing was given up"
    tiles: list[tuple[str, str, str, bool | None]] = [(f"{dead:,}", "dead", lost, not dead)]
    if "finished" in summary:
        met, jain, use = summary["attainment"], summary["jain"], summary["token_use"]
        takes, inverted = summary["takes"], summary["inverted_takes"]
        half = f"half in {duration(summary['total_p50_ms'])}"
        settled = f"of {summary['finished']:,} settled"
        if takes:
            tiles.insert(0, (f"{inverted:,}", "inverted takes", f"of {takes:,}", not inverted))
        if jain is not None:
            worst = f"at worst {summary['jain_worst']:.2f}"
            tiles.insert(0, (f"{jain:.2f}", "fairness", worst, jain >= _FAIR))
        if met is not None:
            tiles.insert(0, (share(met), "within target", "", met >= _WELL))
        used = NOTHING if use is None else share(use)
        tiles = [
            (
                number(summary["per_s"]),
                "per second",
                f"at best {number(summary['peak_per_s'])}",
                None,
            ),
            (duration(summary["total_p95_ms"]), "95 % within", half, None),
            *tiles,
            (used, "token use", f"by {plural(summary['workers'], 'worker')}", None),
            (f"{summary['retries']:,}", "retries", settled, None),
        ]
    for value, name, note, is_good in tiles:
        mood = "" if is_good is None else " good" if is_good else " bad"
        text = f"<b>{escape(value)}</b><span>{name}</span><small>{note}</small>"
        found.append(f"<div class='tile{mood}'>{text}</div>")
    return found


def _foot(summary: Mapping[str, Any]) -> str:
    missing = summary["done"] + summary["dead"] - summary["results"]
    if "finished" not in summary:
        return "The archive was made without results, so there is nothing on times."
    if missing > 0:
        return (
            f"The results of {missing:,} sub-requests are not in the archive: "
            "they had left Redis before, or were settled before this time."
        )
    return "Percentiles are exact."


# ------------------------------------------------------------------ sections


def _sections(figures: Figures, drawn: Mapping[str, str]) -> list[str]:
    """Returns the sections that have a plot or a table."""
    found = []
    for plot, words in _TEXTS.items():
        # On a phone a plot keeps the size of its text, and scrolls: also with the keys.
        shown = f"<figure tabindex='0'>{drawn[plot]}</figure>" if plot in drawn else ""
        shown += "".join(_table(figures, *one) for one in _TABLES.get(plot, {}).items())
        name, _, text = words.partition("\n")
        is_aimless = plot == "targets" and figures.summary.get("attainment") is None
        shown = f"<p>{_NO_TARGETS if is_aimless else text.strip()}</p>{shown}" if shown else ""
        found.append(f"<section><h2>{name}</h2>{shown}</section>" if shown else "")
    return found


def _table(figures: Figures, name: str, kind: str) -> str:
    """Returns a table, or "" without rows; columns without a value are left out."""
    rows, rest = figures.tables[name], figures.counts[name]
    is_each = name.endswith("_each")
    if not rows or (is_each and figures.bands.size == 1):
        return ""
    keys = [key for key in rows[0] if key == "band" or any(row[key] is not None for row in rows)]
    sides = {key: "text" if _is_text(key, rows[0][key]) else "number" for key in keys}
    heads = "".join(f"<th class='{sides[key]}'>{_heading(key)}</th>" for key in keys)
    body = "".join(
        "<tr>"
        + "".join(f"<td class='{sides[key]}'>{_cell(figures, key, row[key])}</td>" for key in keys)
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    table = f"<div class='scroll' tabindex='0'>{table}</div>"
    if is_each:
        return f"<details><summary>Each of the {rest} priorities</summary>{table}</details>"
    file = _FILES.get(name, name)
    note = f"The {MOST} {kind}, of {rest:,}. All are in tables/{file}.parquet."
    return table + (f"<p class='dim'>{note}</p>" if kind and rest > MOST else "")


def _is_text(key: str, value: Any) -> bool:
    return isinstance(value, str) or key in {"band", "priority"} or key.endswith("_at")


def _heading(key: str) -> str:
    name, _, kind = key.partition("_")
    return f"{name} at, UTC" if kind == "at" else name.replace("band", "priority")


def _cell(figures: Figures, key: str, value: Any) -> str:
    if value is None:
        return "all" if key == "band" else NOTHING
    if key in {"band", "priority"}:
        variable = VARIABLES[colour_of(figures.bands, value)]
        name = figures.bands.name(value) if key == "band" else value
        return f"<i class='dot' style='background:var({variable})'></i>{name}"
    usual = str if isinstance(value, str) else number
    show = next((show for end, show in _KINDS.items() if key.endswith(end)), usual)
    return escape(printable(show(value)))
