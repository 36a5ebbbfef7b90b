"""A queue at a glance: its tokens by lane, its workers, its most urgent requests.

It only reads. The cost is bounded, however many requests and tokens wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.control.live_workers import beat_ages
from fairlane.operations.find import waiting
from fairlane.operations.find.urgent import most_urgent, read_progress
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.operations.maintenance.queue_pause import QueuePause, read_until
from fairlane.operations.maintenance.queue_rate import parse_queue_rate
from fairlane.protocol import keys
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONF = (b"max_waiting", b"waiting", b"paused_until", b"rate")


def queue_status(queue: str, most: int = 1000) -> Operation[dict[str, Any]]:
    """Returns counts of one queue: tokens by lane, delayed tokens, workers, unfinished requests.

    `requests` are the `most` most urgent ones among those of the first MOST_READ tokens and the
    first MOST_READ entries of `active`; `more` is how many others are unfinished. `lanes` and
    `delayed` leave out stale tokens, which can start nothing; `stale` counts those. `workers` are
    those without a late beat; `beats` is the age of each last beat in ms, until the record expires.
    `waiting` is counted only in a queue with a bound, `max_waiting`; else both are None. `rate` is
    the queue's. `paused_until` is in ms by its Redis; None: not paused, or until it is resumed.
    """
    spread = yield from read_shards(queue)
    tokens = yield from waiting.read_waiting(queue, spread.served)
    replies = yield Batch(
        [
            Command(b"ZRANGE", keys.workers(queue), 0, -1, b"WITHSCORES"),
            Command(b"TIME"),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"ZRANGE", keys.active(queue), 0, waiting.MOST_READ - 1),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"HMGET", keys.conf(queue), *_CONF),
        ]
    )
    beats = beat_ages(replies[0], time_ms(replies[1]))
    active, names, logged, bound = replies[2:]
    requests = yield from read_progress((yield from most_urgent(queue, tokens, names))[:most])
    stale = yield from waiting.count_stale(queue, tokens)
    lanes, delayed = waiting.without_stale(tokens.counts, stale)
    return {
        "queue": queue,
        "lanes": lanes,
        "delayed": delayed,
        "stale": stale.total(),
        "shards": list(spread.present.numbers),
        "workers": [name for name, age_ms in beats.items() if not is_late(age_ms)],
        "beats": beats,
        "requests": requests,
        "more": max(0, active - most),
        "logged": logged,
        **_settings(queue, bound, time_ms(replies[1])),
    }


def _settings(queue: str, conf: Sequence[bytes | None], now_ms: int) -> dict[str, Any]:
    """Returns the bound, the count of what waits, the pause and the rate."""
    most, waits, until, text = conf
    rate = parse_queue_rate(queue, text)
    pause = QueuePause(read_until(until), now_ms)
    return {
        "max_waiting": int(most) if most else None,
        "waiting": int(waits or 0) if most else None,
        "paused": pause.is_paused,
        "paused_until": pause.until_ms,
        "rate": rate.words if rate is not None else None,
    }
