"""How long to wait before the next try, for calls to Redis and for sub-requests."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from fairlane.common import clock

if TYPE_CHECKING:
    from collections.abc import Iterator


def connection_delays(patience_s: float) -> Iterator[float]:
    """Yields seconds between retries of one call: 0.02 doubling to 1, until `patience_s` is over.

    The time begins now and includes the calls, because a call to a server that does not answer
    takes its whole timeout.
    """
    return _delays(clock.mono_s() + patience_s)


def _delays(end: float) -> Iterator[float]:
    delay = 0.02
    while (left := end - clock.mono_s()) > 0:
        yield min(left, delay * random.uniform(0.5, 1.0))
        delay = min(1.0, delay * 2)


def retry_delay_ms(attempt: int, backoff_min_ms: int, backoff_max_ms: int) -> int:
    """Returns the ms until a failed sub-request runs again: doubling per attempt, with jitter.

    The value lies between a half of and the whole backoff_min * 2^(attempt - 1), and is never
    shorter than backoff_min nor longer than backoff_max. The first pause is up to twice as long as
    the shortest one, so that calls that failed together do not come back together.
    """
    ceiling = min(backoff_max_ms, backoff_min_ms * 2 ** min(max(1, attempt - 1), 30))
    return random.randint(max(backoff_min_ms, ceiling // 2), ceiling)
