"""Compares Fairlane's goals with the figures of the same run."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from bench.harness.registry import PEERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The reason why a goal is not reached, as an analysis of the figures found it.
REASONS = {
    "drain, results ÷ raw XREADGROUP COUNT 100 + XACK": (
        "different runs reach 0.42 to 0.79. The scripts take 6 µs of Redis for each, raw reading "
        "takes 2, and the machine is shared"
    ),
    "requests of one submitted ÷ BullMQ's addBulk": (
        "one script call submits 50 requests, and yet each takes 18 µs of Redis: a hash, the body, "
        "an entry in the index and a token, each with its checks. That alone allows 55,000 a "
        "second; Python takes the rest of the time"
    ),
    "requests of one finished ÷ BullMQ's best": (
        "one call settles a hundred requests and takes the next ones. Each takes 65 µs of Redis, "
        "which is the limit, and 42 µs in BullMQ: Fairlane checks the lease, writes a log entry "
        "and its marker, publishes the end and keeps the result with a TTL"
    ),
    "one by one ÷ plain XADD": (
        "a submission is one script of ten commands instead of one command, 100 µs of Redis on "
        "this machine beside 30"
    ),
    "one by one ÷ best peer": (
        "ChasquiMQ sends one XADD from Rust, and Dramatiq two commands. Of the peers that submit "
        "by a script, BullMQ is about as fast"
    ),
    "idle: start p50 ÷ raw Redis": (
        "it takes one round trip to submit, one to wake the worker and one to acquire; raw Redis "
        "takes two, without a script"
    ),
    "idle: result known p50 ÷ raw Redis": "it takes the same round trips, and one to complete",
    "10 ms async handlers, 100 concurrent: busy": (
        "a slice of 20 ms holds one or two such handlers and has one round trip. A round trip "
        "takes about 1.5 ms, because a hundred others begin with it. Longer slices keep more "
        "handlers busy"
    ),
    "10 ms sync handlers, 100 threads: busy": (
        "a hundred threads share one interpreter lock, and each has a round trip in a slice"
    ),
}

Kept = dict[str, dict[str, Any]]
_TITLE, _SINGLE, _COUNT1 = "Fairlane", "Fairlane, requests of one", "Fairlane, slices off (COUNT 1)"
_STORED, _BARE = "results stored", "no results"


class Figures:
    """Returns medians by workload, label and point."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.worker_cores = min((k.get("worker_cores", 0) for k in kept.values()), default=0)

    def of(self, name: str, metric: str, label: str, point: str = "") -> float | None:
        for row in self._kept.get(name, {"rows": []})["rows"]:
            if row["label"] == label and row["point"] == point:
                return _middle(row, metric)
        return None

    def best(
        self, name: str, metric: str, points: set[str], fits: Callable[[Any], bool]
    ) -> tuple[float, str] | None:
        """Returns the highest figure of the peers that fit, and the label of its peer."""
        found = [
            (value, row["label"])
            for row in self._kept.get(name, {"rows": []})["rows"]
            if row["peer"] != "fairlane" and not PEERS[row["peer"]].is_limit
            if row["point"] in points and fits(PEERS[row["peer"]])
            if (value := _middle(row, metric)) is not None
        ]
        return max(found) if found else None


def _middle(row: dict[str, Any], metric: str) -> float | None:
    values = [value for value in row["values"].get(metric, []) if value is not None]
    return statistics.median(values) if values else None


def _is_python(peer: Any) -> bool:
    return bool(peer.language == "Python")


def _is_node(peer: Any) -> bool:
    return bool(peer.name == "bullmq")


def _of(value: float | None, other: tuple[float, str] | None) -> tuple[float | None, str]:
    if value is None or other is None:
        return None, ""
    return value / other[0], f"{value:,.0f} beside {other[0]:,.0f} ({other[1]})"


def _raw(figures: Figures, name: str, label: str, point: str) -> tuple[float, str] | None:
    value = figures.of(name, "rate", label, point)
    return (value, label) if value else None


def _rates(figures: Figures) -> Iterator[tuple[str, str, float, tuple[float | None, str]]]:
    bulk = figures.of("submit", "rate", _TITLE, "in bulk")
    drain = figures.of("drain", "rate", _TITLE, _STORED)
    one = figures.of("drain", "rate", _COUNT1, _STORED)
    raw = "raw Redis (redis-py)"
    python = figures.best("submit", "rate", {"in bulk"}, _is_python)
    anyone = figures.best("submit", "rate", {"in bulk"}, lambda _: True)
    yield "bulk submit ÷ best Python peer", ">", 10, _of(bulk, python)
    yield "bulk submit ÷ best of any language", ">", 2, _of(bulk, anyone)
    pipelined = _raw(figures, "submit", raw, "in bulk")
    yield "bulk submit ÷ raw pipelined XADD", ">", 1, _of(bulk, pipelined)
    python = figures.best("drain", "rate", {_STORED}, _is_python)
    yield "drain, results ÷ best Python peer with results", ">", 10, _of(drain, python)
    node = figures.best("drain", "rate", {_STORED}, _is_node)
    yield "drain, results ÷ BullMQ on Node", ">", 4, _of(drain, node)
    read = _raw(figures, "drain", raw, _BARE)
    yield "drain, results ÷ raw XREADGROUP COUNT 100 + XACK", ">", 0.6, _of(drain, read)
    keeps = figures.best(
        "drain", "rate", {_STORED, _BARE}, lambda peer: _is_python(peer) and peer.acknowledges
    )
    yield "COUNT 1 ÷ best acknowledging Python peer", ">", 1.5, _of(one, keeps)
    single = figures.of("submit", "rate", _TITLE, "one by one")
    plain = _raw(figures, "submit", raw, "one by one")
    yield "one by one ÷ plain XADD", ">", 0.6, _of(single, plain)
    safe = figures.best("submit", "rate", {"one by one"}, lambda peer: peer.acknowledges)
    yield "one by one ÷ best peer", ">", 1, _of(single, safe)


def _levels(figures: Figures) -> Iterator[tuple[str, str, float, tuple[float | None, str]]]:
    def shown(value: float | None, form: str) -> tuple[float | None, str]:
        return value, "" if value is None else form.format(value)

    big = figures.of("footprint", "bytes", _TITLE, "requests of 100,000")
    raw = figures.of("footprint", "bytes", "raw Redis (redis-py)")
    each = _of(big, (raw, "raw stream entry")) if raw else (None, "")
    yield "bytes of a waiting sub-request ÷ raw stream entry", "<", 1.3, each
    single = figures.of("footprint", "bytes", _TITLE, "requests of 1")
    yield "bytes of a request of one", "<", 600, shown(single, "{:,.0f} B")
    node = figures.best("submit", "rate", {"in bulk"}, _is_node)
    many = figures.of("submit", "rate", _SINGLE, "in bulk")
    yield "requests of one submitted ÷ BullMQ's addBulk", ">", 3, _of(many, node)
    node = figures.best("drain", "rate", {_STORED, _BARE}, _is_node)
    done = figures.of("drain", "rate", _SINGLE, _STORED)
    yield "requests of one finished ÷ BullMQ's best", ">", 2, _of(done, node)
    for point, metric in (("start p50", "start_p50"), ("result known p50", "known_p50")):
        mine = figures.of("latency", metric, _TITLE)
        bare = figures.of("latency", metric, "raw Redis (redis-py)")
        ratio = mine / bare if mine and bare else None
        text = f"{mine:.2f} ms beside {bare:.2f}" if ratio else ""
        yield f"idle: {point} ÷ raw Redis", "<", 2, (ratio, text)
    urgent = figures.of("overtaking", "p50", _TITLE)
    yield "urgent among 200,000: p50 (a slice of 20 ms + 1 ms)", "<", 21, shown(urgent, "{:.1f} ms")
    share = figures.of("fairness", "end", _TITLE)
    yield "Jain's index, 20 requests, 8 workers", ">", 0.95, shown(share, "{:.3f}")


def _scaling(figures: Figures) -> Iterator[tuple[str, str, float, tuple[float | None, str]]]:
    busy = figures.of("handlers", "busy", _TITLE, "async, 10 ms, 100 concurrent")
    shown = "" if busy is None else f"{busy:.1f} busy"
    yield "10 ms async handlers, 100 concurrent: busy", ">", 95, (busy, shown)
    threads = figures.of("handlers", "busy", _TITLE, "sync, 10 ms, 100 concurrent")
    shown = "" if threads is None else f"{threads:.1f} busy"
    yield "10 ms sync handlers, 100 threads: busy", ">", 90, (threads, shown)
    eight = figures.of("processes", "rate", _TITLE, "10 ms, 8 processes")
    one = figures.of("processes", "rate", _TITLE, "10 ms, 1 process")
    ten = _of(eight, (one, "1 process")) if one else (None, "")
    yield "10 ms sync handlers: 8 processes ÷ 1", ">", 7.6, ten
    two = figures.of("processes", "rate", _TITLE, "no-op, 2 processes")
    first = figures.of("processes", "rate", _TITLE, "no-op, 1 process")
    pair = _of(two, (first, "1 process")) if first else (None, "")
    if figures.worker_cores == 1:
        pair = (pair[0], f"{pair[1]}; both share the one core beside the server's")
    yield "no-ops: 2 processes ÷ 1, where cores allow", ">", 1.8, pair
    least = figures.of("growth", "rate", _TITLE, "10,000 waiting")
    most = figures.of("growth", "rate", _TITLE, "10,000,000 waiting")
    grown = _of(least, (most, "10,000,000 waiting")) if most else (None, "")
    yield "cost at 10^7 waiting ÷ at 10^4", "<", 1.1, grown
    lane = figures.of("lanes", "rate", _TITLE, "1 lane")
    lanes = figures.of("lanes", "rate", _TITLE, "100 lanes")
    hundred = _of(lane, (lanes, "100 lanes")) if lanes else (None, "")
    yield "cost of 100 lanes ÷ of 1", "<", 1.1, hundred


def lines(kept: Kept) -> list[str]:
    """Returns the table of the goals that have a figure."""
    figures = Figures(kept)
    found = ["| goal | wanted | measured | reached | figures |", "|---|---:|---:|---|---|"]
    for rows in (_rates, _levels, _scaling):
        for claim, side, wanted, (value, text) in rows(figures):
            if value is None:
                continue
            is_reached = value >= wanted if side == ">" else value <= wanted
            sign = "≥" if side == ">" else "≤"
            reached = "yes" if is_reached else "**no**"
            if not is_reached and claim in REASONS:
                text = f"{text}; {REASONS[claim]}"  # noqa: PLW2901
            found.append(f"| {claim} | {sign} {wanted:,} | {value:,.2f} | {reached} | {text} |")
    return found
