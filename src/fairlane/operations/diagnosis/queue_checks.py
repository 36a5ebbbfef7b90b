"""The checks of a whole queue: its workers, what is due, what was lost. Their cost is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.text import format_duration, join_names, of_queue, plural
from fairlane.operations.diagnosis.finding import BAD, NOTE, OK, WARN, Finding, once
from fairlane.operations.diagnosis.size_checks import retention, small_requests
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.operations.maintenance.queue_pause import read_pause
from fairlane.operations.maintenance.queue_rate import read_queue_rate
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Operation

_ENDINGS = 100
_OVERDUE_MS = 30_000  # a leader handles what is due within seconds


def workers(queue: str, _: Sequence[Any]) -> Operation[list[Finding]]:
    """Finds a queue that no worker serves, and workers whose last heartbeat is old."""
    key = keys.workers(queue)
    beats, waiting, time = yield Batch(
        [
            Command(b"ZRANGE", key, 0, -1, b"WITHSCORES"),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"TIME"),
        ]
    )
    pairs = zip(beats[::2], beats[1::2], strict=True)
    ages = {
        name.decode("utf-8", "replace"): time_ms(time) - float(beaten) for name, beaten in pairs
    }
    late = [name for name, age in ages.items() if is_late(age)]
    gone = [name for name in late if ages[name] > settings.WORKER_TTL_MS]
    count = len(ages) - len(late)
    if not count and waiting:
        what = f"no worker beats, and {plural(waiting, 'unfinished request')} waiting"
        remedy = f"start one: fairlane worker --queue {queue} --handler module:function"
        found = [Finding("workers", BAD, what, remedy)]
    elif late:
        remedy = "look whether they run; what they held goes to others"
        found = [Finding("workers", WARN, f"{count} beat, late: {join_names(late)}", remedy)]
    else:
        what = f"{count} beat" if count else "none, and no unfinished request is listed"
        found = [Finding("workers", OK, what)]
    if gone:
        expire = once(library().expire_workers((key,), ttl=settings.WORKER_TTL_MS))
        what = f"no beat for a minute, still registered: {join_names(gone)}"
        found.append(Finding("late", NOTE, what, "remove them from the registry", repair=expire))
    return found


def pause(queue: str, _: Sequence[Any]) -> Operation[list[Finding]]:
    """Finds that the queue is paused."""
    found = yield from read_pause(queue)
    if not found.is_paused:
        return []
    what, resumes = f"the queue is {found.text}", f"fairlane queue resume{of_queue(queue)}"
    return [Finding("pause", WARN, what, f"{resumes} lets workers take from it")]


def rate(queue: str, _: Sequence[Any]) -> Operation[list[Finding]]:
    """Finds that the queue has a rate."""
    found = yield from read_queue_rate(queue)
    if found is None:
        return []
    what = f"the queue starts at most {found.words}"
    remedy = f"fairlane queue rate off{of_queue(queue)} removes the rate"
    return [Finding("rate", NOTE, what, remedy)]


def upkeep(queue: str, _: Sequence[Any]) -> Operation[list[Finding]]:
    """Finds that no leader handles what is due in `active` and in every `delayed`."""
    spread = yield from read_shards(queue)
    due_keys = [keys.active(queue), *(keys.delayed(queue, shard) for shard in spread.served)]
    asked = [Command(b"ZRANGE", key, 0, 0, b"WITHSCORES") for key in due_keys]
    *firsts, time = yield Batch([*asked, Command(b"TIME")])
    behind = time_ms(time) - min((float(first[1]) for first in firsts if first), default=9e15)
    if behind <= _OVERDUE_MS:
        return [Finding("upkeep", OK, "what is due is looked after")]
    what = f"no leader has looked after what was due {format_duration(int(behind))} ago"
    return [Finding("upkeep", WARN, what, "start a worker: each of them may lead")]


def endings(queue: str, _: Sequence[Any]) -> Operation[list[Finding]]:
    """Finds requests that vanished recently."""
    log = yield Command(b"XREVRANGE", keys.completed(queue), b"+", b"-", b"COUNT", _ENDINGS)
    lost = []
    for _entry, fields in log:
        text = dict(zip(fields[::2], fields[1::2], strict=True))
        if text.get(b"state") == b"lost":
            lost.append(text.get(b"id", b"?").decode("utf-8", "replace"))
    if not lost:
        return [Finding("endings", OK, f"none lost among the last {len(log)}")]
    what = f"{len(lost)} of the last {len(log)} requests were lost: {join_names(lost)}"
    remedy = "submit them again; see persistence and replicas above for how not to lose the next"
    return [Finding("endings", WARN, what, remedy)]


QUEUE = (workers, pause, rate, upkeep, endings, small_requests, retention)
