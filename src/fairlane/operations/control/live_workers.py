"""Which workers of a queue beat, and the remedy where none does or the queue is paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common.text import of_queue
from fairlane.errors import FairlaneError
from fairlane.operations.lease.rates import opens
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.operations.maintenance.queue_pause import QueuePause, read_until, remedy
from fairlane.operations.maintenance.queue_rate import parse_queue_rate, until_more
from fairlane.protocol import keys
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence


def unserved(queue: str) -> Operation[str]:
    """Returns the remedy for a queue that is paused, has no worker or has used up its rate.

    It returns "" for any other.

    Also "" if the workers cannot be read, because the caller reports something more important.
    """
    key = keys.workers(queue)
    asked = [
        Command(b"ZRANGE", key, 0, -1, b"WITHSCORES"),
        Command(b"HMGET", keys.conf(queue), b"paused_until", b"rate"),
        Command(b"TIME"),
    ]
    try:
        workers, (until, text), time = yield Batch(asked, patience_s=0.0, away_s=settings.AWAY_S)
        rate, now_ms = parse_queue_rate(queue, text), time_ms(time)
        opens_ms = 0 if rate is None else (yield from opens(rate, now_ms))
    except FairlaneError:
        return ""
    pause = QueuePause(read_until(until), now_ms)
    if pause.is_paused:
        return remedy(queue, pause)
    ages = beat_ages(workers, now_ms)
    if all(is_late(age_ms) for age_ms in ages.values()):
        return no_worker(queue)
    return until_more(queue, rate, opens_ms, now_ms) if rate is not None and opens_ms else ""


def no_worker(queue: str) -> str:
    """Returns the sentence about a queue without a live worker."""
    return (
        f"no worker takes from queue {queue}: "
        f"start one with rq-worker --app module:app, or --handler module:function{of_queue(queue)}"
    )


def beat_ages(workers: Sequence[bytes], now_ms: int) -> dict[str, int]:
    """Returns the age of each worker's last beat, unless its record has expired since."""
    pairs = zip(workers[::2], workers[1::2], strict=True)
    ages = {
        name.decode("utf-8", "replace"): max(0, now_ms - int(float(beat))) for name, beat in pairs
    }
    return {name: ages[name] for name in sorted(ages) if ages[name] <= settings.WORKER_TTL_MS}
