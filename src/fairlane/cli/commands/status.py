"""`fairlane status`: the queue at a glance, or one request in detail."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

import click

from fairlane.cli.commands.errors import failure_rows
from fairlane.cli.options import (
    any_or_home_option,
    json_option,
    open_queue,
    open_request,
    redis_option,
)
from fairlane.cli.output import (
    ago,
    note_unknown,
    request_table,
    row_line,
    shown_state,
    task_rows,
    write_styled,
)
from fairlane.cli.progress import ProgressFrame, refresh
from fairlane.common.text import as_json as to_json
from fairlane.common.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairlane.call_records import LongCall
    from fairlane.cli.output import State
    from fairlane.queue import Queue
    from fairlane.records import Holder, Progress, QueueStatus, RequestCounts
    from fairlane.request import Request

ROWS = 20  # requests of the table, and workers; --json has up to 1,000
_LONG_CALLS = 3  # that are named
# A queue in which all of these are empty has no rows.
SHOWN = (
    "requests",
    "more",
    "lanes",
    "stale",
    "delayed",
    "beats",
    "ended",
    "max_waiting",
    "is_paused",
    "rate",
)


@click.command("status", short_help="Show a queue, or one request and its workers.")
@click.argument("request_id", metavar="[ID]", required=False)
@click.option(
    "--watch",
    is_flag=True,
    help="Refresh it until Ctrl-C, or until ID has ended: in place on a terminal, else a line "
    "for each change.",
)
@any_or_home_option
@json_option
@redis_option
def command(
    request_id: str | None, redis: str | None, queue: str | None, watch: bool, as_json: bool
) -> int:
    """Show lanes, requests and workers of a queue; with ID, one request and its workers."""
    if request_id is None:
        with open_queue(redis, queue) as opened:
            note_unknown(opened)
            _show(partial(_queue_frame, opened, as_json=as_json), watch=watch, as_json=as_json)
        return 0
    with open_request(redis, queue, request_id) as request:
        _show(partial(_request_frame, request, as_json=as_json), watch=watch, as_json=as_json)
    return 0


def _show(look: Callable[[], ProgressFrame], *, watch: bool, as_json: bool) -> None:
    if watch:
        refresh(look, in_place=not as_json)
        return
    frame = look()
    for line in [frame.line] if as_json else frame.lines:
        write_styled(line)


# ------------------------------------------------------------------ a queue


def _queue_frame(queue: Queue, *, as_json: bool) -> ProgressFrame:
    found = queue.status()
    is_empty = not any(getattr(found, name) for name in SHOWN)
    words = _in_short(found)
    if as_json:
        return ProgressFrame([], to_json(found), words)
    lines = [_nothing(found.queue)] if is_empty else [*_queue_lines(found)]
    return ProgressFrame(lines, words, words)


def _in_short(found: QueueStatus) -> str:
    """Returns a queue on one line."""
    from fairlane.cli.output import until_words
    from fairlane.common.text import plural

    tokens = _tokens(sum(found.lanes.values()))
    workers = plural(len(found.workers), "worker")
    return (
        f"queue {found.queue}: {_waiting(found)}; {_states(found)}; {tokens} in lanes, "
        f"{_tokens(found.delayed)} delayed; {workers}; {found.ended:,} ended"
        + ("; paused " + until_words(found.queue, found.paused_until_ms) if found.is_paused else "")
    )


def _waiting(found: QueueStatus) -> str:
    """Returns how much waits, and the trend."""
    trend = f", {found.backlog.trend}" if found.backlog.trend else ""
    return f"{found.backlog.count} waiting{trend}"


def _by_lane(found: QueueStatus) -> str:
    """Returns what waits, by priority; the last ones are summed up."""
    lanes = list(found.backlog.lanes.items())
    parts = [f"{count:,} in lane {lane}" for lane, count in lanes[:ROWS]]
    rest = sum(count for _, count in lanes[ROWS:])
    return ", ".join([*parts, *([f"{rest:,} in others"] if rest else [])])


def _states(found: QueueStatus) -> str:
    """Returns the requests of a queue by state, and how many others there are."""
    shown = Counter(str(shown_state(one)) for one in found.requests)
    counts = ", ".join(f"{count:,} {printable(state)}" for state, count in sorted(shown.items()))
    return (counts or "none") + (f", and {found.more:,} more" if found.more else "")


def _queue_lines(found: QueueStatus) -> Iterator[str]:
    from fairlane.cli.commands.queue import as_words
    from fairlane.cli.output import until_words

    lanes = ", ".join(f"{lane}: {_tokens(count)}" for lane, count in found.lanes.items())
    stale = f"{_tokens(found.stale)} are left over: workers discard them"
    rows = [
        ("queue", found.queue),
        ("waiting", found.backlog.words),
        *([("", _by_lane(found))] if found.backlog.lanes else []),
        ("requests", _states(found)),
        ("tokens", lanes or "none"),
        *([("stale", stale)] if found.stale else []),
        ("delayed", _tokens(found.delayed)),
        *zip(chain(["workers"], repeat("")), _workers(found), strict=False),
        *_long_call_rows(found.long_calls, with_request=True),
        ("ended", f"{found.ended:,} in the log"),
        *([("bound", as_words(found.max_waiting, found.admitted))] if found.max_waiting else []),
        *([("paused", until_words(found.queue, found.paused_until_ms))] if found.is_paused else []),
        *([("rate", found.rate)] if found.rate else []),
    ]
    for name, value in rows:
        yield row_line(name, value)
    if found.requests:
        yield ""
        yield from _request_table(found.requests)


def _long_call_rows(
    calls: Sequence[LongCall], *, with_request: bool = False
) -> Iterator[tuple[str, str]]:
    """Yields a row for each call that runs unusually long, and how to end it."""
    for at, one in enumerate(calls[:_LONG_CALLS]):
        of = f" of request {one.id}" if with_request else ""
        text = f"{one.what}{of} has run for {ago(one.ran_ms)} on worker {one.worker}; {one.usual}"
        yield "" if at else "hangs", f"{text}: {one.remedy}"
    if len(calls) > _LONG_CALLS:
        yield "", f"and {len(calls) - _LONG_CALLS:,} more (fairlane tasks counts them)"


def _nothing(queue: str) -> str:
    """Returns the one line for a queue in which there is nothing to show."""
    from fairlane.common.text import of_queue

    return (
        f"queue {queue} is empty: nothing was submitted to it yet, or none of it is left; "
        f"rq-submit FILE{of_queue(queue)} submits to it, and --queue NAME shows another queue"
    )


def _workers(found: QueueStatus) -> list[str]:
    """Describes each worker by its last beat, those with a late beat last."""
    fresh, beats = found.workers, found.beats
    late = beats.keys() - set(fresh)
    lines = [f"{name}, beat {ago(beats[name])} ago" for name in fresh]
    lines += [f"{name}, no beat for {ago(beats[name])}: stopped or dead" for name in sorted(late)]
    more = [f"and {len(lines) - ROWS:,} more (--json shows them)"] if len(lines) > ROWS else []
    return [*lines[:ROWS], *more] or ["none"]


def _request_table(requests: Sequence[RequestCounts]) -> Iterator[str]:
    yield from request_table(requests[:ROWS])
    if len(requests) > ROWS:
        yield f"... and {len(requests) - ROWS:,} more (--json shows them)"


# ------------------------------------------------------------------ a request


def _request_frame(request: Request, *, as_json: bool) -> ProgressFrame:
    from fairlane.cli.progress import describe
    from fairlane.operations.request_state import full_progress

    progress, now_ms = request.queue.driver.run(full_progress(request.id))
    words = printable(describe(progress, None))
    if as_json:
        return ProgressFrame([], to_json(progress), words, progress.ended)
    age = f"submitted {ago(max(0, now_ms - progress.submitted_ms))} ago"
    if progress.ended_ms is not None:
        age += f", ended {ago(max(0, now_ms - progress.ended_ms))} ago"
    state = shown_state(progress)
    missing = _missing(request, progress)
    gated = "waits" if (progress.opens_ms or 0) > now_ms else "workers"
    label = "paused" if progress.state == "paused" else gated
    rows = [
        ("request", progress.id),
        ("state", _behind_state(request, progress, state)),
        ("queue", f"{progress.queue}, priority {progress.priority}"),
        *task_rows(progress),
        ("counts", _counts(progress)),
        *_repair_rows(progress, now_ms),
        *_long_call_rows(progress.long_calls or ()),
        *failure_rows(progress, now_ms),
        ("permits", f"{progress.held} held of {progress.limit}"),
        *(("", _holder(row)) for row in progress.holders or ()),
        *([(label, missing)] if missing else []),
        ("age", age),
        ("policy", _policy(progress)),
        *_terms(progress, now_ms),
    ]
    lines = [row_line(name, value, state if name == "state" else None) for name, value in rows]
    return ProgressFrame(lines, words, words, progress.ended)


def _behind_state(request: Request, progress: Progress, state: State) -> str:
    """Returns what follows the state: why it is so, and how many are dead."""
    from fairlane.cli.exit_status import dead_of

    reason = f": {progress.reason}" if progress.reason else ""
    where = dead_of(request.queue, progress)
    words = f", {progress.dead:,} of {progress.total:,} dead"
    if progress.outcome == "partly_failed":  # the state has their number
        words = f" of {progress.total:,}"
    dead = f"{words}: {where}" if where else ""
    is_open = progress.is_open and state.state != "submitting"
    return (" (still being submitted)" if is_open else "") + reason + dead


def _missing(request: Request, progress: Progress) -> str:
    from fairlane.cli.progress import what_is_missing

    return request.queue.driver.run(what_is_missing(progress))


def _holder(row: Holder) -> str:
    from fairlane.common.text import plural

    owed = plural(row.owed, "sub-request")
    at = "".join(
        f"; sub-request {one.index} is at {one.done:,} of {one.total:,}" for one in row.calls
    )
    return f"{row.worker} holds permit {row.permit}, {owed} not settled{at}"


def _counts(progress: Progress) -> str:
    words = ("done", "dead", "cancelled", "left")
    counts = ", ".join(f"{getattr(progress, word):,} {word}" for word in words)
    from fairlane.cli.exit_status import so_far

    return f"{counts} of {progress.total:,}{so_far(progress)}"


def _repair_rows(progress: Progress, now_ms: int) -> Iterator[tuple[str, str]]:
    """Yields a row for each opening after an end, newest first."""
    for at, one in enumerate(progress.repairs):
        by = f" by {one.by}" if one.by else ""
        age = ago(max(0, now_ms - one.at_ms))
        yield "" if at else "reopened", f"{one.count:,} dead requeued{by}, {age} ago"


def _policy(progress: Progress) -> str:
    from fairlane.common.text import plural

    attempts, backoff, lease_ms = progress.attempts, progress.backoff_ms, progress.lease_ms
    retain_ms = progress.retain_ms
    if attempts is None or backoff is None or lease_ms is None or retain_ms is None:
        return "not known"
    low, high = map(ago, backoff)
    kept = f"results kept {ago(retain_ms)}" if retain_ms else "results not kept"
    tries = plural(attempts, "attempt")
    return f"{tries}, backoff {low}..{high}, lease {ago(lease_ms)}, {kept}"


def _keys(progress: Progress) -> Iterator[tuple[str, str]]:
    if progress.limits:
        yield "keys", ", ".join(f"{name} ({limit})" for name, limit in progress.limits.items())
    if progress.order_key:
        on_dead = ", the dead stop those behind it" if progress.order_on_dead == "stop" else ""
        yield "order", f"{progress.order_key}{on_dead}"


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
    for rate in progress.rates:
        yield "rate", rate
    yield from _keys(progress)
    if progress.tags:
        yield "tags", ", ".join(progress.tags)
    if progress.tenant:
        shown = f" (share {progress.share})" if (progress.share or 0) > 1 else ""
        yield "tenant", progress.tenant + shown
    if progress.left_out:
        sent = progress.total + progress.left_out
        yield "distinct", f"{progress.left_out:,} of {sent:,} bodies were left out as repeats"


def _tokens(count: int) -> str:
    return f"{count:,} token" + ("" if count == 1 else "s")
