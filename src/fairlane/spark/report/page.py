"""One page of HTML with everything in it: it needs no other file and no network."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003  a field of a NamedTuple
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.common.fingerprint import read_failure
from fairlane.common.text import reason_words
from fairlane.spark.report.numbers import NOTHING, count, duration, number, share
from fairlane.spark.report.plots import VARIABLES, colour_of
from fairlane.spark.report.tables import FAIR_S, GRACE_MS, LADDER_MS, Bands

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from fairlane.spark.report.plots import Plot
    from fairlane.spark.report.tables import Rows


# ------------------------------------------------------------------ headings
# The texts of the page: its headline, the tiles, and the names of failures.


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


# ------------------------------------------------------------------ tables
# Tables of the page.


class Column(NamedTuple):
    """A column: the row's key, its heading, and how a value is shown.

    Numbers stand on the right, text (`is_text`) on the left. `is_html`: what `show` returns is
    HTML already.
    """

    key: str
    heading: str
    show: Callable[[Any], str]
    is_text: bool = False
    is_html: bool = False


def table_of(rows: Rows, columns: Sequence[Column], note: str = "") -> str:
    """Returns a table, or "" without rows."""
    if not rows:
        return ""
    sides = ["text" if column.is_text else "number" for column in columns]
    heads = "".join(
        f"<th class='{side}'>{escape(column.heading)}</th>"
        for side, column in zip(sides, columns, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td class='{side}'>{_cell(column, row.get(column.key))}</td>"
            for side, column in zip(sides, columns, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    below = f"<p class='dim'>{escape(note)}</p>" if note else ""
    return (
        f"<div class='scroll'><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{below}"
    )


def _cell(column: Column, value: Any) -> str:
    if column.is_html:
        return column.show(value)
    return NOTHING if value is None else escape(column.show(value))


Tables = dict[str, Any]
_MOST = 12  # rows of a table


def write_page(
    file: Path, tables: Mapping[str, Rows], summary: Mapping[str, Any], plots: Sequence[Plot]
) -> Path:
    """Writes the page and returns its path."""
    drawn = {plot.name: plot.svg for plot in plots}
    parts = [_head(summary), _tiles(summary)]
    parts += [section for section in _sections(tables, summary, drawn) if section]
    parts.append(_foot(summary))
    style = files(__package__).joinpath("page.css").read_text()
    title = f"Queue report, {summary['from'][:10]}"
    file.write_text(
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n",
        encoding="utf-8",
    )
    return file


def _head(summary: Mapping[str, Any]) -> str:
    first, last = (summary[name].removesuffix("+00:00") for name in ("from", "to"))
    last = last.removeprefix(f"{first[:10]}T")
    return (
        f"<header><p class='kicker'>Queue report</p><h1>{escape(headline(summary))}</h1>"
        f"<p class='dim'>{first.replace('T', ' ')} to {last.replace('T', ' ')} UTC, in windows of "
        f"{duration(summary['window_s'] * 1000)}</p></header>"
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    drawn = "".join(
        f"<div class='tile {tile.mood}'><b>{escape(tile.value)}</b>"
        f"<span>{escape(tile.name)}</span><small>{escape(tile.note)}</small></div>"
        for tile in tiles(summary)
    )
    return f"<div class='tiles'>{drawn}</div>"


def _section(name: str, text: str, *parts: str) -> str:
    inner = "".join(parts)
    return f"<section><h2>{escape(name)}</h2><p>{text}</p>{inner}</section>" if inner else ""


def _plot(drawn: Mapping[str, str], name: str) -> str:
    # On a phone it keeps the size of its text, and scrolls: also with the keys.
    return f"<figure tabindex='0'>{drawn[name]}</figure>" if name in drawn else ""


def _sections(
    tables: Mapping[str, Rows], summary: Mapping[str, Any], drawn: Mapping[str, str]
) -> list[str]:
    bands = Bands.of(tables)
    return [
        _section(
            "Throughput",
            "Sub-requests that were settled, done or dead, by priority (0 is the most urgent).",
            _plot(drawn, "throughput"),
        ),
        _section(
            "How long it took",
            "Waited: until a worker took it for its last attempt, with the pauses before retries. "
            "Ran: in the handler, in that attempt. In total: from the submission to the end of it. "
            "The line is the 95th percentile, the dashed one the median.",
            _plot(drawn, "latency"),
            _latency_table(tables, bands),
        ),
        _section(
            "Targets",
            _target_text(summary),
            _plot(drawn, "targets"),
            _target_table(tables, bands),
        ),
        _section(
            "Requests",
            "From submission to end: pale until the first sub-request started. "
            "Those that took longest.",
            _plot(drawn, "requests"),
            _request_table(tables, bands),
        ),
        *_shares(tables, bands, drawn),
    ]


def _shares(tables: Mapping[str, Rows], bands: Bands, drawn: Mapping[str, str]) -> list[str]:
    return [
        _section(
            "Tokens",
            "Tokens in use (a sub-request in its handler uses one) and what the limits of the "
            "requests that were there allowed. Requests that have not ended are not in the "
            "archive, and so not here.",
            _plot(drawn, "tokens"),
            _worker_table(tables),
        ),
        _section(
            "Fairness",
            "Between requests of one priority that were there for a whole window of at least "
            f"{duration(FAIR_S * 1000)}, each measured by the share of its own limit that it used. "
            "1: all had the same; 1/n: one of n had all.",
            _plot(drawn, "fairness"),
        ),
        _inversions(tables, bands),
        _section(
            "Longest waits",
            "How long the one that waited longest had waited, of those settled in each window.",
            _plot(drawn, "waits"),
            _wait_table(tables, bands),
        ),
        _section(
            "Dead",
            "Sub-requests that were given up, by reason and by what they failed with.",
            _plot(drawn, "dead"),
            _dead_table(tables, bands),
        ),
    ]


def _foot(summary: Mapping[str, Any]) -> str:
    missing = summary["done"] + summary["dead"] - summary["results"]
    lines = ["Percentiles come from KLL sketches, which are right to about half a percent in rank."]
    if "finished" not in summary:
        lines.append("The archive was made without results, so there is nothing on times.")
    elif missing > 0:
        lines.append(
            f"The results of {missing:,} sub-requests are not in the archive: "
            "they had left Redis before, or were settled before this time."
        )
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    text = " ".join(lines)
    return f"<footer>{escape(text)} Made by Fairlane, {made}.</footer>"


# ------------------------------------------------------------------ tables


def _priority(bands: Bands) -> Column:
    """Returns the column of a row's own priority, with the colour of its band."""

    def show(value: Any) -> str:
        return NOTHING if value is None else f"{_dot(bands, value)}{value}"

    return Column("priority", "priority", show, is_text=True, is_html=True)


def _band(bands: Bands) -> Column:
    """Returns the column of a row's band. The row's priority is the band's key."""

    def show(value: Any) -> str:
        return "all" if value is None else f"{_dot(bands, value)}{bands.name(value)}"

    return Column("priority", "priority", show, is_text=True, is_html=True)


def _by_priority(
    tables: Mapping[str, Rows], bands: Bands, table: Callable[[Rows, Column], str]
) -> str:
    """Returns a table by band, and below it a folded one by priority if the bands hold several."""
    shown = table(_whole_last(tables.get("bands", [])), _band(bands))
    if bands.size > 1 and shown:
        rows = [row for row in tables["priorities"] if row["priority"] is not None]
        each = f"Each of the {len(rows)} priorities"
        folded = table(rows, _priority(bands))
        shown += f"<details><summary>{each}</summary>{folded}</details>"
    return shown


def _dot(bands: Bands, priority: int | None) -> str:
    return f"<i class='dot' style='background:var({VARIABLES[colour_of(bands, priority)]})'></i>"


def _latency_table(tables: Mapping[str, Rows], bands: Bands) -> str:
    columns = [Column("finished", "settled", count)]
    for name in ("waited", "ran", "total"):
        columns += [
            Column(f"{name}_{rank}_ms", f"{name} {rank}", duration)
            for rank in ("p50", "p95", "p99")
        ]
    columns += [
        Column("retries", "retries", count),
        Column("dead", "dead", count),
    ]
    return _by_priority(tables, bands, lambda rows, priority: table_of(rows, [priority, *columns]))


def _whole_last(rows: Rows) -> Rows:
    ordered = sorted(rows, key=lambda row: (row["priority"] is None, row["priority"] or 0))
    return ordered[:1] if len(ordered) == 2 else ordered  # noqa: PLR2004  one priority is the whole


def _target_text(summary: Mapping[str, Any]) -> str:
    if summary.get("attainment") is None:
        return "No targets were given: the share that was done within some times."
    return (
        "The share of what was settled that was done within its target; "
        "a dead sub-request has missed it."
    )


def _target_table(tables: Mapping[str, Rows], bands: Bands) -> str:
    def table(rows: Rows, priority: Column) -> str:
        shares = [
            {
                **row,
                **{name: row[name] / row["finished"] for name in LADDER_MS},
                "met": row["met"] / row["aimed"] if row["aimed"] else None,
            }
            for row in rows
        ]
        aims = [Column("target_ms", "target", duration), Column("met", "met", share)]
        has_aims = any(row["aimed"] for row in rows)
        return table_of(shares, [priority, *(aims if has_aims else []), *within])

    within = [Column(name, f"within {duration(bound)}", share) for name, bound in LADDER_MS.items()]
    return _by_priority(tables, bands, table)


def _request_table(tables: Mapping[str, Rows], bands: Bands) -> str:
    rows = sorted(tables["requests"], key=lambda row: -row["total"])[:_MOST]
    columns = [
        Column("id", "request", str, is_text=True),
        _priority(bands),
        *(Column("limit", "limit", count), Column("state", "state", str, is_text=True)),
        *(Column("total", "sub-requests", count), Column("dead", "dead", count)),
        Column("duration_ms", "took", duration),
        *(Column("busy_ms", "in handlers", duration), Column("use", "token use", share)),
    ]
    return table_of(rows, columns, _note("biggest", tables["requests"], "requests"))


def _note(kind: str, rows: Sequence[Any], file: str) -> str:
    """Returns how many rows a table leaves out, and the file that has all of them."""
    if len(rows) <= _MOST:
        return ""
    return f"The {_MOST} {kind}, of {len(rows):,}. All are in tables/{file}.parquet."


def _worker_table(tables: Mapping[str, Rows]) -> str:
    workers = tables.get("workers", [])
    rows = [
        {**row, "use": row["busy_ms"] / max(1, row["last"] - row["first"])}
        for row in workers[:_MOST]
    ]
    columns = [
        Column("worker", "worker", str, is_text=True),
        Column("finished", "settled", count),
        Column("busy_ms", "in handlers", duration),
        Column("use", "parallel handlers", number),
    ]
    return table_of(rows, columns, _note("that settled most", workers, "workers"))


def _inversions(tables: Mapping[str, Rows], bands: Bands) -> str:
    groups = bands.group(tables.get("inversions", []))
    rows = [bands.total(group, "takes", "inverted", "sub_requests") for group in groups]
    rows = [{**row, "share": row["inverted"] / row["takes"]} for row in rows]
    columns = [
        _band(bands),
        Column("takes", "takes", count),
        *(Column("inverted", "inverted", count), Column("share", "share", share)),
        Column("sub_requests", "sub-requests", count),
    ]
    examples = [
        Column("taken", "taken at, UTC", _clock, is_text=True),
        Column("request", "request", str, is_text=True),
        _priority(bands),
        Column("waiting_request", "while this one waited", str, is_text=True),
        Column("waiting_priority", "its priority", count),
        Column("waiting_ms", "for", duration),
    ]
    text = (
        "A worker takes a slice of a request in one step. The take is inverted when, for the "
        f"{GRACE_MS} ms before it and still after it, a request of a more urgent priority was open "
        "to workers: a sub-request of it waited for its first attempt, and it held fewer slices "
        "than its limit. What is being worked on is never taken away, so shorter overlaps are no "
        "fault. A request that a person had paused looks as if it waited."
    )
    inverted = table_of(tables.get("inverted", [])[:10], examples)
    return _section("Priority inversions", text, table_of(rows, columns), inverted)


def _wait_table(tables: Mapping[str, Rows], bands: Bands) -> str:
    columns = [
        _priority(bands),
        Column("waited_ms", "longest wait", duration),
        Column("request", "request", str, is_text=True),
        Column("index", "index", count),
        Column("started", "started at, UTC", _clock, is_text=True),
    ]
    groups = bands.group(tables.get("longest_waits", []))
    return table_of([max(group, key=lambda row: row["waited_ms"]) for group in groups], columns)


def _dead_table(tables: Mapping[str, Rows], bands: Bands) -> str:
    groups = bands.group(tables.get("dead", []), "reason", "fingerprint")
    rows = [
        {
            **bands.total(group, "count", "requests"),
            "what": dead_headline(group[0]),
            "last": max(row["last"] for row in group),
        }
        for group in groups
    ]
    rows.sort(key=lambda row: -row["count"])
    columns = [
        Column("reason", "reason", reason_words, is_text=True),
        Column("what", "with", str, is_text=True),
        _band(bands),
        *(Column("count", "sub-requests", count), Column("requests", "requests", count)),
        Column("last", "last at, UTC", _clock, is_text=True),
    ]
    return table_of(rows[:_MOST], columns, _note("most frequent", rows, "dead"))


def _clock(ms: float | None) -> str:
    return "" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
