"""`fairlane why`: what holds up one request, its place in the lanes, and when it may start."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

import click

from fairlane.cli.options import home_option, json_option, open_request, redis_option
from fairlane.cli.output import row_line, shown_state, task_rows, write_json, write_styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.records import Estimate, WhyWaiting

_NAMED = {"limit", "held", "cancelling", "expiring"}  # their sentences name the workers

_SOON_MS = 1_000


@click.command("why", short_help="Explain why one request waits, and when it may start.")
@click.argument("request_id", metavar="ID")
@home_option
@json_option
@redis_option
def command(request_id: str, redis: str | None, queue: str | None, as_json: bool) -> int:
    """Explain what holds up ID: a limit, a rate, a pause, other requests, tokens ahead, no worker.

    The cause that matters most comes first. The estimate uses the pace that the workers measured,
    and assumes that nothing more urgent comes.
    """
    with open_request(redis, queue, request_id) as request:
        found = request.why()
    if as_json:
        write_json(found)
        return 0
    for name, value in _rows(found):
        state = shown_state(found.request) if name == "state" else None
        write_styled(row_line(name, value, state))
    return 0


def _rows(found: WhyWaiting) -> Iterator[tuple[str, str]]:
    from fairlane.cli.exit_status import left_out_words, so_far
    from fairlane.common.text import join_names, plural

    progress = found.request
    yield "request", f"{progress.id}, in queue {progress.queue} with priority {progress.priority}"
    yield from task_rows(progress)
    done = f"{progress.done:,} done, {progress.dead:,} dead"
    cancelled = f", {progress.cancelled:,} cancelled" if progress.cancelled else ""
    reason = f" ({progress.reason})" if progress.reason else ""
    total = f"{progress.total:,}{so_far(progress)}"
    yield "state", f"{reason}: {done}{cancelled} of {total}{left_out_words(progress)}"
    if found.workers and not any(cause.kind in _NAMED for cause in found.causes):
        permits = plural(progress.limit, "permit")
        yield "runs", f"{progress.held:,} of {permits}, by {join_names(list(found.workers))}"
    texts = (cause.text for cause in found.causes)
    yield from zip(chain(["waits"], repeat("")), texts, strict=False)
    if found.lane_place is not None and not found.lane_place.is_lost:
        least = "" if found.lane_place.is_exact else "at least "
        behind = plural(found.lane_place.urgent, "more urgent request")
        at_work = f", behind {behind} at work" if found.lane_place.urgent else ""
        yield "place", f"{least}{found.lane_place.place:,} in line{at_work}"
    if not progress.ended:
        yield from _estimate(found.estimate, found.now_ms)


def _estimate(found: Estimate, now_ms: int) -> Iterator[tuple[str, str]]:
    from fairlane.common.text import figure, plural, when

    if found.why_not:
        yield "estimate", f"none: {found.why_not}"
        return
    if found.starts_ms:
        is_soon = found.starts_ms - now_ms < _SOON_MS
        yield (
            "starts",
            "in less than a second" if is_soon else f"about {when(found.starts_ms, now_ms)}",
        )
    if found.ends_ms:
        yield "ends", f"about {when(found.ends_ms, now_ms)}, if nothing more urgent comes"
    yield (
        "measured",
        f"{figure(found.per_s)} sub-requests a second by {plural(found.units, 'unit')}",
    )
