"""`fairlane status`: the queue at a glance, or one request in detail."""

from __future__ import annotations

from collections import Counter
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import click

from fairlane.cli.commands.failures import failure_fields, failure_rows
from fairlane.cli.durations import ago
from fairlane.cli.options import (
    any_or_home_option,
    json_option,
    open_queue,
    open_request,
    redis_option,
)
from fairlane.cli.output import write_json, write_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fairlane.model import Progress
    from fairlane.protocol.steps import Operation
    from fairlane.queue import Queue, Request

ROWS = 20  # requests of the table, and workers; --json has up to 1,000
TERMS = ("timeouts", "deadline_ms", "time_limit_ms", "durable", "parent")
# A queue in which all of these are empty has no rows.
SHOWN = ("requests", "more", "lanes", "stale", "delayed", "beats", "logged", "max_waiting")
POLICY = ("attempts", "backoff_min", "backoff_max", "lease_ms", "retain_ms")


@click.command("status", short_help="Show a queue, or one request and its workers.")
@click.argument("request_id", metavar="[ID]", required=False)
@any_or_home_option
@json_option
@redis_option
def command(request_id: str | None, redis: str | None, queue: str | None, as_json: bool) -> int:
    """Show lanes, requests and workers of a queue; with ID, one request and its workers."""
    if request_id is None:
        with open_queue(redis, queue) as opened:
            _show_queue(opened, as_json=as_json)
        return 0
    with open_request(redis, queue, request_id) as request:
        _show_request(request, as_json=as_json)
    return 0


def _show_queue(queue: Queue, *, as_json: bool) -> None:
    from fairlane.cli.commands.queue import as_words
    from fairlane.cli.exit_status import summary

    found = queue.status()
    requests: list[Progress] = found["requests"]
    if as_json:
        states = Counter(request.state for request in requests)
        listed = [summary(request) for request in requests]
        write_json({**found, "states": states, "requests": listed})
        return
    if not any(found[name] for name in SHOWN):
        write_line(_nothing(found["queue"]))
        return
    shown = Counter(map(_state, requests))
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(shown.items()))
    more = f", and {found['more']:,} more" if found["more"] else ""
    lanes = ", ".join(f"{lane}: {_tokens(count)}" for lane, count in found["lanes"].items())
    stale = f"{_tokens(found['stale'])} are left over: workers discard them"
    rows = [
        ("queue", found["queue"]),
        ("requests", (counts or "none") + more),
        ("lanes", lanes or "empty"),
        *([("stale", stale)] if found["stale"] else []),
        ("delayed", _tokens(found["delayed"])),
        *zip(chain(["workers"], repeat("")), _workers(found), strict=False),
        ("ended", f"{found['logged']:,} in the log"),
        *([("waiting", as_words(found))] if found["max_waiting"] else []),
    ]
    _emit_rows(rows)
    if requests:
        write_line("")
        _emit_table(requests)


def _nothing(queue: str) -> str:
    """Returns the one line for a queue in which there is nothing to show."""
    from fairlane.common.text import of_queue

    return (
        f"queue {queue} is empty: nothing was submitted to it yet, or none of it is left; "
        f"rq-submit FILE{of_queue(queue)} submits to it, and --queue NAME shows another queue"
    )


def _workers(found: dict[str, Any]) -> list[str]:
    """Describes each worker by its last beat, those with a late beat last."""
    fresh, beats = found["workers"], found["beats"]
    late = beats.keys() - set(fresh)
    lines = [f"{name}, beat {ago(beats[name])} ago" for name in fresh]
    lines += [f"{name}, no beat for {ago(beats[name])}: stopped or dead" for name in sorted(late)]
    more = [f"and {len(lines) - ROWS:,} more (--json shows them)"] if len(lines) > ROWS else []
    return [*lines[:ROWS], *more] or ["none"]


def _emit_table(requests: Sequence[Progress]) -> None:
    head = ("REQUEST", "STATE", "PRIORITY", "DONE", "DEAD", "TOTAL", "HELD/LIMIT")
    body = [_row(request) for request in requests[:ROWS]]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    for row in (head, *body):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        write_line("  ".join(cells).rstrip())
    if len(requests) > ROWS:
        write_line(f"... and {len(requests) - ROWS:,} more (--json shows them)")


def _row(request: Progress) -> tuple[str, ...]:
    counts = (request.priority, request.done, request.dead, request.total)
    permits = f"{request.held}/{request.limit}"
    return request.id, _state(request), *(f"{count:,}" for count in counts), permits


def _state(request: Progress) -> str:
    """Returns the state for people: `submitting` while an active request is not complete."""
    return "submitting" if request.is_open and request.state == "active" else request.state


def _show_request(request: Request, *, as_json: bool) -> None:
    from fairlane.cli.exit_status import dead_of, summary
    from fairlane.cli.stall_notice import what_is_missing

    progress, holders, retries, now_ms = request.queue.driver.run(_look(request.id))
    policy = {name: int(progress.detail[name]) for name in POLICY if name in progress.detail}
    age_ms = max(0, now_ms - progress.submitted_ms)
    ended_ms = max(0, now_ms - progress.ended_ms) if progress.ended else None
    if as_json:
        ages = {"age_ms": age_ms, "ended_ago_ms": ended_ms}
        terms = {name: getattr(progress, name) for name in TERMS}
        failed = failure_fields(progress, *retries)
        more = {**ages, **terms, **failed, "policy": policy, "holders": holders}
        write_json({**summary(progress), **more})
        return
    ended = "" if ended_ms is None else f", ended {ago(ended_ms)} ago"
    reason = f": {progress.reason}" if progress.reason else ""
    where = dead_of(request.queue, progress)
    dead = f", {progress.dead:,} of {progress.total:,} dead: {where}" if where else ""
    state = _state(progress)
    is_open = progress.is_open and state != "submitting"
    state += " (still being submitted)" if is_open else ""
    missing = request.queue.driver.run(what_is_missing(progress))
    label = "paused" if progress.state == "paused" else "workers"
    rows = [
        ("request", progress.id),
        ("state", state + reason + dead),
        ("queue", f"{progress.queue}, priority {progress.priority}"),
        ("counts", _counts(progress)),
        *failure_rows(progress, *retries, now_ms),
        ("permits", f"{progress.held} held of {progress.limit}"),
        *(("", _holder(row)) for row in holders),
        *([(label, missing)] if missing else []),
        ("age", f"submitted {ago(age_ms)} ago{ended}"),
        ("policy", _policy(policy)),
        *_terms(progress, now_ms),
    ]
    _emit_rows(rows)


def _look(
    request_id: str,
) -> Operation[tuple[Progress, list[dict[str, Any]], tuple[int, int], int]]:
    """Returns a request, the holders of its permits, its retries, and the time in Redis.

    Each holder has its calls of this request that have reported their progress.
    """
    from fairlane.operations.control.call_progress import read_calls
    from fairlane.operations.control.request_state import holders, moment, progress, waiting_retries

    counts = yield from progress(request_id)
    held = yield from holders(request_id)
    retries = yield from waiting_retries(request_id)
    workers = [*dict.fromkeys(row["worker"] for row in held)]
    calls = yield from read_calls(counts.queue, request_id, workers)
    rows: list[dict[str, Any]] = [
        {**row, "calls": [one.parts for one in calls if one.k == row["permit"]]} for row in held
    ]
    return counts, rows, retries, (yield from moment(request_id))


def _holder(row: dict[str, Any]) -> str:
    from fairlane.common.text import plural

    owed = plural(int(row["owed"]), "sub-request")
    shown = "; sub-request {index} is at {done:,} of {total:,}"
    at = "".join(shown.format(**one) for one in row["calls"])
    return f"{row['worker']} holds permit {row['permit']}, {owed} not settled{at}"


def _counts(progress: Progress) -> str:
    words = ("done", "dead", "cancelled", "left")
    counts = ", ".join(f"{getattr(progress, word):,} {word}" for word in words)
    return f"{counts} of {progress.total:,}"


def _policy(policy: dict[str, int]) -> str:
    if len(policy) < len(POLICY):
        return "not known"
    from fairlane.common.text import plural

    attempts, *durations = (policy[name] for name in POLICY)
    low, high, lease, retain = (ago(ms) for ms in durations)
    tries = plural(attempts, "attempt")
    return f"{tries}, backoff {low}..{high}, lease {lease}, results kept {retain}"


def _terms(progress: Progress, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yields the rows of options that this request was given."""
    if progress.deadline_ms:
        left = progress.deadline_ms - now_ms
        yield "deadline", f"in {ago(left)}" if left > 0 else f"{ago(-left)} ago"
    if progress.time_limit_ms:
        over = f", exceeded {progress.timeouts:,} times" if progress.timeouts else ""
        yield "per call", f"at most {ago(progress.time_limit_ms)} in the handler{over}"
    if progress.durable:
        yield "durable", f"on {progress.durable} replica" + "s" * (progress.durable > 1)
    if progress.parent:
        yield "parent", progress.parent


def _tokens(count: int) -> str:
    return f"{count:,} token" + ("" if count == 1 else "s")


def _emit_rows(rows: Iterable[tuple[str, Any]]) -> None:
    for name, value in rows:
        write_line(f"{name:<9} {value}")
