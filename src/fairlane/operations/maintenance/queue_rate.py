"""The rate of a whole queue: at most so many of its sub-requests start in a time.

It stands in the queue's `conf`, and each beat of a worker returns it, as a pause. A worker that has
popped tokens takes an allowance from the queue's bucket before it acquires, as for a request's own
rate. If there is none, the tokens return to their lane and the worker waits for its turn. So the
most urgent request starts next, and a queue without a rate costs no further command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common.rate import rate_of, rate_of_queue
from fairlane.common.text import of_queue, when
from fairlane.errors import InvalidArgument
from fairlane.operations.lease.rates import refit
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.common.rate import Rate
    from fairlane.protocol.steps import Operation

_MOST_DIGITS = 11


def check_queue_rate(rate: str | None, burst: int | None = None) -> tuple[int, int]:
    """Returns the interval in µs and the burst; (0, 0) for no rate. Raises InvalidArgument."""
    if rate is not None:
        _, interval, most, _ = rate_of(rate, burst)
        return interval, most
    if burst is not None:
        raise InvalidArgument("burst needs a rate: give rate, too, as 100/s")
    return 0, 0


def set_queue_rate(queue: str, rate: str | None, burst: int | None = None) -> Operation[None]:
    """Gives a queue this rate; None removes it. Raises InvalidArgument.

    The bucket may owe what a slower rate has taken; that is bounded by the new burst.
    """
    interval, most = check_queue_rate(rate, burst)
    yield library().rate_queue((keys.conf(queue),), interval=interval, burst=most)
    if rate is not None:
        yield Batch(refit("", [rate_of_queue(queue, interval, most)]))


def read_queue_rate(queue: str) -> Operation[Rate | None]:
    """Returns the rate of a queue; None = it has none."""
    value: bytes | None = yield Command(b"HGET", keys.conf(queue), b"rate")
    return parse_queue_rate(queue, value)


def parse_queue_rate(queue: str, value: bytes | None) -> Rate | None:
    """Returns the rate that stands in `conf`; None for none, or for what no release wrote."""
    words = (value or b"").split()
    if len(words) != 2 or not all(word.isdigit() for word in words):  # noqa: PLR2004
        return None
    if max(map(len, words)) > _MOST_DIGITS:
        return None
    interval, burst = map(int, words)
    return rate_of_queue(queue, interval, burst) if interval and burst else None


def until_more(queue: str, rate: Rate, opens_ms: int, now_ms: int) -> str:
    """Returns when a queue's rate allows more, and what removes the rate."""
    return (
        f"the rate of queue {queue}, {rate.words}, allows more at {when(opens_ms, now_ms)}: "
        f"fairlane queue rate off{of_queue(queue)} removes it"
    )
