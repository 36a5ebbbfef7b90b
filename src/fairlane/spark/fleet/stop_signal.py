"""The stop signal of fleets: their workers look for it by the name that they share."""

from __future__ import annotations

from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Operation

KEPT_MS = 7 * 24 * 3_600_000  # no worker of a fleet waits so long for a core


def now_us(queue: str) -> Operation[int]:
    """Returns the time of the queue's dispatch server, in microseconds."""
    _, (seconds, micros) = yield Batch([Command(b"ZCARD", keys.fleets(queue)), Command(b"TIME")])
    return int(seconds) * 1_000_000 + int(micros)


def stop(queue: str, name: str) -> Operation[None]:
    """Drains every worker of this fleet that began before now; later ones go on.

    The signal expires a week later, or at the next stop after that.
    """
    keys.check_name("fleet", name)
    now = yield from now_us(queue)
    key = keys.fleets(queue)
    old = now - KEPT_MS * 1000
    yield Batch(
        [
            Command(b"ZREMRANGEBYSCORE", key, b"-inf", old),
            Command(b"ZADD", key, now, name),
            Command(b"PEXPIRE", key, KEPT_MS),
        ]
    )


def stopped_us(queue: str, name: str) -> Operation[int]:
    """Returns the moment of this fleet's last stop signal, in microseconds; 0 = never."""
    score = yield Command(b"ZSCORE", keys.fleets(queue), name)
    return int(float(score)) if score else 0
