"""The checks of what happens to a queue at work: failures, growth, floods, stops, late deliveries.

None of it is damage, so nothing has a repair: each remedy is a command for a person. The checks
only read, and their cost is bounded. docs/how-to/watch/at-night.md has a section for each.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fairlane.common.task_names import tasks_words
from fairlane.common.text import format_duration, join_names, of_queue, plural
from fairlane.operations.check_result import BAD, NOTE, WARN, Finding
from fairlane.operations.dead_letters import queue_errors
from fairlane.operations.estimate import demand
from fairlane.operations.limit_keys import list_keys
from fairlane.operations.queues import queue_status
from fairlane.operations.schedules import list_schedules
from fairlane.operations.webhooks import late_deliveries
from fairlane.operations.workers import DEATHS_MS, is_late, recent_deaths
from fairlane.protocol import keys
from fairlane.protocol.server_info import time_at, time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.records import FailureGroup, KeyState, QueueBacklog, QueueStatus, RetryGroup

_MOST_DEAD = 10_000  # dead sub-requests that are grouped
CAUSE_REMOVED = "; when its cause is removed, "  # behind it a command for a group of failures
_HEADLINE = 200  # characters of an error
_DIED = "died"
_PILED_S = 5  # what waits is more than what comes in so long
_READ = 20_000  # unfinished requests of which all are read for the trend
_FLOOD, _FLOOD_LEAST = 0.8, 1_000  # of what waits, by one tenant
_FLAPS = 2  # deaths of one host within an hour
_KEYS = 1_000
_SHOWN = 5  # keys, schedules or webhooks of one kind


async def failures(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds dead sub-requests, bodies that end their process, and calls that fail at present."""
    errors = await queue_errors(queue, _MOST_DEAD)
    now_ms = await time_at(keys.conf(queue))
    killers = [group for group in errors.groups if group.reason == _DIED]
    others = [group for group in errors.groups if group.reason != _DIED]
    return [
        *_dead("failures", queue, others, now_ms),
        *_dead("deaths", queue, killers, now_ms),
        *_retries(queue, errors.retries, now_ms),
    ]


def _dead(check: str, queue: str, groups: Sequence[FailureGroup], now_ms: int) -> Iterator[Finding]:
    """Yields the finding about dead sub-requests; it names the group that is most."""
    if not groups:
        return
    first, count = groups[0], sum(group.count for group in groups)
    age = format_duration(max(0, now_ms - max(group.last_ms for group in groups)))
    verb = "are dead" if count > 1 else "is dead"
    has_kinds = len(groups) > 1
    sort = f", of {plural(len(groups), 'kind')}" if has_kinds else ""
    most = "; most often" if has_kinds else ""  # what died last may be another kind
    what = (
        f"{plural(count, 'sub-request')} {verb}{sort}, the latest one died {age} ago{most}: "
        f"{_what_failed(first.headline, first.where, first.tasks)}"
    )
    look = f"fairlane errors{of_queue(queue)}"
    if check == "deaths":
        look = f"fairlane dead list {first.examples[0].id} --each shows the body"
    repair = f"fairlane dead requeue{of_queue(queue)} --fingerprint {first.fingerprint} --yes"
    yield Finding(check, WARN, what, f"{look}{CAUSE_REMOVED}{repair}")


def _retries(queue: str, groups: Sequence[RetryGroup], now_ms: int) -> Iterator[Finding]:
    """Yields what fails and is tried again: a warning if none of those requests has a result."""
    for first in groups[:1]:
        severity = NOTE if first.done else WARN
        age = format_duration(max(0, now_ms - first.last_ms))
        verb = "waits" if first.count == 1 else "wait"
        none = "" if first.done else ", and none of them has a result"
        what = (
            f"{plural(first.count, 'sub-request')} of {plural(first.requests, 'request')} {verb} "
            f"for another attempt{none}; {age} ago: "
            f"{_what_failed(first.headline, first.where, first.tasks)}"
        )
        chosen = f" --task {next(iter(first.tasks))}" if len(first.tasks) == 1 else " ID"
        remedy = (
            f"fairlane errors{of_queue(queue)}; to keep the others from failing, "
            f"fairlane pause{of_queue(queue)}{chosen}"
        )
        yield Finding("retries", severity, what, remedy)


def _what_failed(headline: str, where: str | None, tasks: dict[str, Any]) -> str:
    place = f" ({where})" if where else ""
    named = f", task {tasks_words(tasks)}" if tasks else ""
    return f"{headline[:_HEADLINE]}{place}{named}"


async def work(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds that a queue grows, and that one tenant has most of what waits."""
    found = await queue_status(queue)
    backlog = found.backlog
    if not backlog.is_exact and len(found.requests) + found.more <= _READ:
        backlog = (await demand(queue)).backlog  # with a trend, because it reads all requests
    return [*_growth(found, backlog), *_flood(found)]


def _growth(found: QueueStatus, backlog: QueueBacklog) -> Iterator[Finding]:
    queue = found.queue
    grows, came = backlog.grows_per_s or 0.0, backlog.came_per_s or 0.0
    if grows <= 0 or backlog.waiting < _PILED_S * came or not found.workers:
        return
    startable = sum(found.lanes.values())
    remedy = "limits, rates or keys hold it back: fairlane why ID"
    if startable:
        remedy = (
            f"{plural(startable, 'more lease')} could start now: start more workers; until then "
            f"fairlane queue set{of_queue(queue)} --max-waiting N refuses more"
        )
    yield Finding("backlog", WARN, f"{backlog.words}", remedy)


def _flood(found: QueueStatus) -> Iterator[Finding]:
    """Yields the tenant that has most of what waits, while others wait too."""
    waiting = Counter[str]()
    for one in found.requests:
        waiting[one.tenant or ""] += one.waiting
    if not waiting:
        return
    total = waiting.total()
    tenant, most = waiting.most_common(1)[0]
    if not tenant or most == total or most < max(_FLOOD_LEAST, _FLOOD * total):
        return
    lanes = sorted({one.priority for one in found.requests if one.tenant == tenant})
    what = (
        f"tenant {tenant} has {most:,} of the {total:,} sub-requests that wait, in "
        f"lane {join_names([str(lane) for lane in lanes])}"
    )
    remedy = (
        f"fairlane set{of_queue(found.queue)} --tenant {tenant} --priority 90 --yes lets the "
        "others go first"
    )
    yield Finding("tenants", WARN, what, remedy)


async def flapping(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds hosts on which workers died again and again."""
    found = dict[str, list[str]]()
    for one in await recent_deaths(queue):
        found.setdefault(one.host, []).append(one.worker)
    return [
        Finding(
            "flapping",
            WARN,
            f"workers of host {host} died {len(names)} times within the last "
            f"{format_duration(DEATHS_MS)}, the last one was {names[0]}",
            "read its log, and stop it there: each death charges an attempt to what it held",
        )
        for host, names in found.items()
        if len(names) >= _FLAPS
    ]


async def limit_keys(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds orders that wait for a person, and full keys for which requests wait."""
    page = await list_keys(queue, _KEYS)
    waiting = sorted(
        (one for one in page.keys if one.waiting), key=lambda one: -(one.waits_ms or 0)
    )
    stopped = [one for one in waiting if one.stopped_by]
    full = [one for one in waiting if not one.is_order and one.held >= one.limit]
    return [*_stopped(queue, stopped), *_full(queue, full)]


def _stopped(queue: str, found: Sequence[KeyState]) -> Iterator[Finding]:
    for one in found[:_SHOWN]:
        verb = "waits" if one.waiting == 1 else "wait"
        what = (
            f"is stopped by the dead of request {one.stopped_by}; "
            f"{plural(one.waiting, 'request')} {verb}{_since(one)}"
        )
        remedy = (
            f"fairlane dead requeue {one.stopped_by} --all runs them again, fairlane key resume "
            f"{one.name}{of_queue(queue)} leaves them"
        )
        yield Finding("orders", BAD, what, remedy, f"order key {one.name}")


def _full(queue: str, found: Sequence[KeyState]) -> Iterator[Finding]:
    for one in found[:_SHOWN]:
        holders = join_names(list(one.holders))
        what = (
            f"is full: {one.held:,} of {one.limit:,} held by {holders}; "
            f"{one.waiting:,} waiting{_since(one)}"
        )
        remedy = (
            f"fairlane stacks {one.holders[0] if one.holders else 'ID'} shows what holds it, "
            f"fairlane key set {one.name} N{of_queue(queue)} raises it"
        )
        yield Finding("keys", NOTE, what, remedy, f"key {one.name}")


def _since(one: KeyState) -> str:
    return "" if one.waits_ms is None else f", the oldest for {format_duration(one.waits_ms)}"


async def schedules(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds schedules whose tick is due, and for which no worker has submitted a request."""
    overdue = [one for one in await list_schedules(queue) if one.state == "overdue"]
    if not overdue:
        return []
    beats, time = await Batch(
        [Command(b"ZRANGE", keys.workers(queue), -1, -1, b"WITHSCORES"), Command(b"TIME")]
    )
    is_served = bool(beats) and not is_late(time_ms(time) - float(beats[1]))
    start = f"start a worker: fairlane worker{of_queue(queue)} --handler module:function"
    remedy = (
        "the log of the leading worker says why; a full queue has no room" if is_served else start
    )
    return [
        Finding(
            "schedules",
            WARN if is_served else BAD,
            f"no worker has submitted what was due {format_duration(one.now_ms - one.next_ms)} ago",
            remedy,
            f"schedule {one.name}",
        )
        for one in overdue[:_SHOWN]
    ]


async def webhooks(queue: str, _: Sequence[Any]) -> list[Finding]:
    """Finds webhooks that were stopped, that fail, and events that no server delivers."""
    found = []
    for late in await late_deliveries(queue):
        if not late.name:
            what = "webhooks have events to deliver, and no server delivers them"
            serve = f"start one: fairlane serve{of_queue(queue)}"
            found.append(Finding("webhooks", WARN, what, serve))
            continue
        resume = f"fairlane webhook resume {late.name}{of_queue(queue)} posts it again now"
        what = f"{plural(late.attempts, 'attempt')} failed: {late.error}"
        if late.is_stopped:
            what = f"is stopped: {late.error}"
        severity = BAD if late.is_stopped else WARN
        found.append(Finding("webhooks", severity, what, resume, f"webhook {late.name}"))
    return found


INCIDENTS = (failures, work, flapping, limit_keys, schedules, webhooks)
