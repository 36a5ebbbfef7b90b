"""`fairlane status`: the queue at a glance, or one request in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import json_option, open_queue, queue_option, redis_option
from .talk import emit, emit_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..model import Progress
    from ..queue import Queue
    from ..steps import Operation

ROWS = 20  # requests of the table; --json has up to 1,000
POLICY = ("attempts", "backoff_min", "backoff_max", "lease_ms", "retain_ms")


@click.command("status", short_help="Show a queue, or one request and who works on it.")
@click.argument("request_id", metavar="[ID]", required=False)
@queue_option
@json_option
@redis_option
def command(request_id: str | None, redis: str | None, queue: str, as_json: bool) -> int:
    """Show lanes, requests and workers of a queue; with ID, one request and who works on it."""
    if request_id is None:
        with open_queue(redis, queue) as opened:
            _show_queue(opened, as_json=as_json)
        return 0
    from ..keys import check_name

    check_name("request id", request_id)
    with open_queue(redis, queue) as opened:
        _show_request(opened, request_id, as_json=as_json)
    return 0


def _show_queue(queue: Queue, *, as_json: bool) -> None:
    from .endings import summary

    found = queue.status()
    requests: list[Progress] = found["requests"]
    states: dict[str, int] = {}
    for request in requests:
        states[request.state] = states.get(request.state, 0) + 1
    if as_json:
        listed = [summary(request) for request in requests]
        emit_json({**found, "states": states, "requests": listed})
        return
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
    more = f", {found['more']:,} not looked at" if found["more"] else ""
    lanes = ", ".join(f"{lane}: {_tokens(count)}" for lane, count in found["lanes"].items())
    rows = [
        ("queue", found["queue"]),
        ("requests", (counts or "none") + more),
        ("lanes", lanes or "empty"),
        ("delayed", _tokens(found["delayed"])),
        ("workers", ", ".join(found["workers"]) or "none"),
        ("ended", f"{found['logged']:,} in the log"),
    ]
    _emit_rows(rows)
    if requests:
        emit("")
        _emit_table(requests)


def _emit_table(requests: Sequence[Progress]) -> None:
    head = ("REQUEST", "STATE", "PRIORITY", "DONE", "DEAD", "TOTAL", "HELD/LIMIT")
    first = sorted(requests, key=lambda request: (request.priority, request.submitted_ms))[:ROWS]
    body = [_row(request) for request in first]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    for row in (head, *body):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        emit("  ".join(cells).rstrip())
    if len(requests) > ROWS:
        emit(f"... and {len(requests) - ROWS:,} more (--json shows them)")


def _row(request: Progress) -> tuple[str, ...]:
    counts = (request.priority, request.done, request.dead, request.total)
    permits = f"{request.held}/{request.limit}"
    return request.id, request.state, *(f"{count:,}" for count in counts), permits


def _show_request(queue: Queue, request_id: str, *, as_json: bool) -> None:
    from .endings import summary

    progress, holders, now_ms = queue.driver.run(_look(request_id))
    policy = {name: int(progress.detail[name]) for name in POLICY if name in progress.detail}
    age_ms = max(0, now_ms - progress.submitted_ms)
    ended_ms = max(0, now_ms - progress.ended_ms) if progress.ended else None
    if as_json:
        ages = {"age_ms": age_ms, "ended_ago_ms": ended_ms}
        emit_json({**summary(progress), **ages, "policy": policy, "holders": holders})
        return
    ended = "" if ended_ms is None else f", ended {_ago(ended_ms)} ago"
    is_open = " (still being submitted)" if progress.is_open else ""
    rows = [
        ("request", progress.id),
        ("state", progress.state + is_open + (f": {progress.reason}" if progress.reason else "")),
        ("queue", f"{progress.queue}, priority {progress.priority}"),
        ("counts", _counts(progress)),
        ("permits", f"{progress.held} held of {progress.limit}"),
        *(("", _holder(row)) for row in holders),
        ("age", f"submitted {_ago(age_ms)} ago{ended}"),
        ("policy", _policy(policy)),
    ]
    _emit_rows(rows)


def _look(request_id: str) -> Operation[tuple[Progress, list[dict[str, str]], int]]:
    """A request, who holds its permits, and what time it is in Redis."""
    from .. import keys
    from ..operations.control import holders, progress
    from ..steps import Batch, Command

    found = yield from progress(request_id)
    held = yield from holders(request_id)
    # TIME goes where the step with a key goes: it is that server which dated the request.
    ask = [Command(b"EXISTS", keys.request_hash(request_id)), Command(b"TIME")]
    _, (seconds, micros) = yield Batch(ask)
    return found, held, int(seconds) * 1000 + int(micros) // 1000


def _holder(row: dict[str, str]) -> str:
    return f"{row['worker']} holds permit {row['permit']}, {row['owed']} sub-requests not settled"


def _counts(progress: Progress) -> str:
    words = ("done", "dead", "cancelled", "left")
    counts = ", ".join(f"{getattr(progress, word):,} {word}" for word in words)
    return f"{counts} of {progress.total:,}"


def _policy(policy: dict[str, int]) -> str:
    if len(policy) < len(POLICY):
        return "not known"
    attempts, *durations = (policy[name] for name in POLICY)
    low, high, lease, retain = (_ago(ms) for ms in durations)
    return f"{attempts} attempts, backoff {low}..{high}, lease {lease}, results kept {retain}"


def _ago(ms: int) -> str:
    """A duration for people: the two largest units."""
    if ms < 1000:  # noqa: PLR2004  a second
        return f"{ms} ms"
    seconds = ms // 1000
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def _tokens(count: int) -> str:
    return f"{count:,} token" + ("" if count == 1 else "s")


def _emit_rows(rows: Iterable[tuple[str, Any]]) -> None:
    for name, value in rows:
        emit(f"{name:<9} {value}")
