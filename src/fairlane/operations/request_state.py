"""The state of a request: its counts, its failed attempts, the holders of its permits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairlane.common.rate import parse_rates
from fairlane.common.task_names import read_tasks
from fairlane.common.text import split_names
from fairlane.errors import not_found
from fairlane.model import ending_words
from fairlane.operations.call_words import with_calls
from fairlane.operations.holds import read_reported
from fairlane.operations.long_calls import long_calls
from fairlane.options import read_limits
from fairlane.protocol import keys, request_hash
from fairlane.protocol.request_hash import as_text, unpacked
from fairlane.protocol.server_info import time_at
from fairlane.protocol.steps import Batch, Command
from fairlane.records import (
    Completion,
    FailedAttempt,
    Holder,
    Progress,
    Repair,
    RequestCounts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairlane.options import Limits
    from fairlane.protocol.lua import Summary
    from fairlane.protocol.request_hash import HeldPermit


def number(fields: dict[str, str], name: str) -> int:
    """Returns a number of a request's hash, 0 if it is missing or no number."""
    return int(fields.get(name) or 0)


async def progress(request_id: str) -> Progress:
    """Returns the counts of a request now. Raises RequestNotFound."""
    fields, held = await Batch(
        [
            Command(b"HGETALL", keys.request_hash(request_id)),
            Command(b"ZCARD", keys.leases(request_id)),
        ]
    )
    found = progress_of(request_id, fields, held)
    if found is None:
        raise not_found(request_id)
    return found


def progress_of(request_id: str, fields: Any, held: int) -> Progress | None:
    """Returns the counts in a request's hash; None if there is no such request."""
    detail = detail_of(fields)
    return progress_in(request_id, detail, held) if detail else None


def detail_of(fields: Any) -> dict[str, str]:
    """Returns a request's hash as text; empty if there is no such request."""
    detail = unpacked(as_text(fields)) if fields else {}
    return {} if detail.get("state") == "abandoned" else detail


def progress_in(request_id: str, detail: dict[str, str], held: int) -> Progress:
    """Returns the counts in what `detail_of` read."""
    get = detail.get
    backoff = get("backoff_min"), get("backoff_max")
    return Progress(
        **_counts_in(request_id, detail, held),
        limit=int(get("limit") or 0),
        left_out=int(get("left_out") or 0),
        failures=int(get("failures") or 0),
        timeouts=int(get("timeouts") or 0),
        last_failure=noted_failure(get("failure", ""), "x"),
        given_back=noted_failure(get("failure", ""), "g"),
        attempts=_known(get("attempts")),
        backoff_ms=(int(backoff[0]), int(backoff[1])) if backoff[0] and backoff[1] else None,
        lease_ms=_known(get("lease_ms")),
        retain_ms=_known(get("retain_ms")),
        remember_ms=_positive(get("remember_ms")),
        deadline_ms=_positive(get("deadline")),
        time_limit_ms=_positive(get("time_limit_ms")),
        durable=_positive(get("durable")),
        rates=tuple(one.words for one in parse_rates(get("rates", ""))),
        limits=dict(limits_in(detail)),
        order_key=get("order") or None,
        order_on_dead=get("on_dead") or ("go_on" if get("order") else None),
        is_rate_limited=get("limited") == "1",
        share=_positive(get("share")) or (1 if get("tenant") else None),
        repairs=_repairs(get("repairs", "")),
        by=get("by") or None,
    )


def limits_in(detail: Mapping[str, str]) -> Limits:
    """Returns the keys of a request with their limits, from what `detail_of` read."""
    parts = detail.get("keys", "").partition("%")[2].removeprefix("%").split(",")
    named = [part for part in parts if part and not part.startswith("!")]
    return read_limits("limits", named)


def order_in(detail: Mapping[str, str]) -> str:
    """Returns the order key of a request as the scripts name it, `!chat-17`; "" if it has none."""
    parts = detail.get("keys", "").partition("%")[2].split(",")
    return next((part.partition("=")[0] for part in parts if part.startswith("!")), "")


def counts_of(request_id: str, fields: Any, held: int) -> RequestCounts | None:
    """Returns the counts of a request for a list; None if there is no such request."""
    detail = detail_of(fields)
    if not detail:
        return None
    limit = int(detail.get("limit") or 0)
    return RequestCounts(**_counts_in(request_id, detail, held), limit=limit)


def _counts_in(request_id: str, detail: dict[str, str], held: int) -> dict[str, Any]:
    get = detail.get  # a list has a thousand of them
    total, done = int(get("total") or 0), int(get("done") or 0)
    dead, cancelled = int(get("dead") or 0), int(get("cancelled") or 0)
    return {
        "id": request_id,
        "queue": detail["queue"],
        "state": detail["state"],
        "priority": int(get("priority") or 0),
        "total": total,
        "done": done,
        "dead": dead,
        "cancelled": cancelled,
        "left": total - done - dead - cancelled,
        "waiting": int(get("fresh") or 0),
        "held": held,
        "is_open": get("open") == "1",
        "submitted_ms": int(get("born") or 0),
        "opens_ms": _positive(get("opens")),
        "ended_ms": _positive(get("ended")),
        "reason": get("reason") or None,
        "reopened": int(get("reopened") or 0),
        "tags": split_names(get("tags", "")),
        "tenant": get("tenant") or None,
        "tasks": read_tasks(get("task", ""), total),
        "redact": split_names(get("redact", "")),
    }


def _repairs(text: str) -> tuple[Repair, ...]:
    """Reads what note_repair (lua/v1/request/requeue_dead.lua) wrote."""
    rows = [row.split(":", 3) for row in text.split()]
    return tuple(
        Repair(int(reopened), int(at_ms), int(count), by or None)
        for reopened, at_ms, count, by in rows
    )


def _known(text: str | None) -> int | None:
    return int(text) if text else None


def _positive(text: str | None) -> int | None:
    """Reads a number whose 0 means that there is none."""
    return int(text or 0) or None


def noted_failure(text: str, wanted: str) -> FailedAttempt | None:
    """Reads what note_failure (lib/state.lua) wrote; None unless its status is the wanted one."""
    if not text:
        return None
    at_ms, head, error = text.split(" ", 2)
    index, status, attempt, *_ = head.split(":")
    if status != wanted:
        return None
    return FailedAttempt(int(index), int(attempt), int(at_ms), error)


async def waiting_retries(request_id: str) -> tuple[int, int]:
    """Returns how many sub-requests wait for another attempt, and when the first is due, in ms."""
    key = keys.retries(request_id)
    count, first = await Batch(
        [Command(b"ZCARD", key), Command(b"ZRANGE", key, 0, 0, b"WITHSCORES")]
    )
    return count, int(float(first[1])) if first else 0


async def moment(request_id: str) -> int:
    """Returns the time of the request's Redis in ms; all times of the request are by that clock."""
    return await time_at(keys.request_hash(request_id))


async def read_holders(request_id: str) -> list[HeldPermit]:
    """Returns the permits of a request that workers hold, by their numbers."""
    fields = await Command(b"HGETALL", keys.permits(request_id))
    return sorted(request_hash.held(as_text(fields)), key=lambda one: int(one.k))


async def full_progress(request_id: str) -> tuple[Progress, int]:
    """Returns a request with its holders and its retries, and the time by its Redis in ms.

    Raises RequestNotFound.
    """
    (found,) = await with_calls([await progress(request_id)])
    held = await read_holders(request_id)
    waiting, due_ms = await waiting_retries(request_id)
    workers = [*dict.fromkeys(one.worker for one in held)]
    reported = await read_reported(found.queue, workers)
    calls = [one for holds in reported.values() for one in holds.calls if one.id == request_id]
    at_ms = await moment(request_id)
    slow = [
        (worker, at_ms, one)
        for worker, holds in reported.items()
        for one in holds.slow
        if one.id == request_id
    ]
    rows = [
        Holder(
            permit=int(one.k),
            worker=one.worker,
            owed=int(one.owed),
            fence=one.fence,
            calls=tuple(call for call in calls if call.permit == int(one.k)),
        )
        for one in held
    ]
    more = replace(
        found,
        holders=tuple(rows),
        retries_waiting=waiting,
        next_retry_ms=due_ms if waiting else None,
        long_calls=tuple(await long_calls(found.queue, slow)),
    )
    return more, at_ms


def how_it_ended(summary: Summary) -> str:
    """Returns the state of a request that has ended as it is shown: how it came out."""
    return ending_words(summary.state.decode(), summary.done, summary.dead, summary.reopened)


def completion(queue: str, log_id: bytes, fields: Any) -> Completion:
    """Reads one entry of the completion log; in a damaged one a missing number is 0."""
    text = as_text(fields)
    numbers = {name: int(value) for name, value in text.items() if value.isdecimal()}
    total, done = numbers.get("total", 0), numbers.get("done", 0)
    dead, cancelled = numbers.get("dead", 0), numbers.get("cancelled", 0)
    return Completion(
        id=text.get("id", ""),
        queue=queue,
        state=text.get("state", ""),
        priority=numbers.get("priority", 0),
        total=total,
        done=done,
        dead=dead,
        cancelled=cancelled,
        left=total - done - dead - cancelled,
        submitted_ms=numbers.get("born", 0),
        ended_ms=numbers.get("ended", 0),
        reopened=numbers.get("reopened", 0),
        reason=text.get("reason") or None,
        log_id=log_id.decode(),
    )


def asks_of_progress(ids: Sequence[str]) -> list[Command]:
    """Returns two commands for each request; `progress_of` takes their replies."""
    return [
        command
        for one in ids
        for command in (
            Command(b"HGETALL", keys.request_hash(one)),
            Command(b"ZCARD", keys.leases(one)),
        )
    ]
