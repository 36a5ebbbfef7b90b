"""Which workers of a queue beat, and the remedy where none does or the queue is paused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common.text import of_queue
from fairlane.errors import FairlaneError
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.operations.maintenance.queue_pause import QueuePause, read_until, remedy
from fairlane.protocol import keys
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence


def unserved(queue: str) -> Operation[str]:
    """Returns the remedy for a queue that is paused or has no worker; "" for any other.

    Also "" if the workers cannot be read, because the caller reports something more important.
    """
    key = keys.workers(queue)
    asked = [
        Command(b"ZRANGE", key, 0, -1, b"WITHSCORES"),
        Command(b"HGET", keys.conf(queue), b"paused_until"),
        Command(b"TIME"),
    ]
    try:
        workers, until, time = yield Batch(asked, patience_s=0.0, away_s=settings.AWAY_S)
    except FairlaneError:
        return ""
    pause = QueuePause(read_until(until), time_ms(time))
    if pause.is_paused:
        return remedy(queue, pause)
    ages = beat_ages(workers, time_ms(time))
    if not all(is_late(age_ms) for age_ms in ages.values()):
        return ""
    return no_worker(queue)


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
