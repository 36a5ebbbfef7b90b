"""The handler: adds up the text of an order. Executors and plain workers import it."""

from __future__ import annotations

import json
import zlib

from fairlane import Context, Reject, Retry

BUSY = 100  # of so many orders one meets a busy service at its first attempt


def add_up(body: bytes, context: Context) -> str:
    """Adds up an order such as `3x12.50 1x120.00`: its items and its cents.

    An amount without a dot has no other attempt, because the text will not change. Some orders
    fail at their first attempt, as calls of a service do.
    """
    if context.attempt == 1 and is_unlucky(body):
        raise Retry(after=0.1, reason="the service is busy")
    items = cents = 0
    for position in body.decode().split():
        count, _, amount = position.partition("x")
        whole, dot, hundredths = amount.partition(".")
        if not dot:
            raise Reject(f"{amount} is no amount: write it with a dot")
        items += int(count)
        cents += int(count) * (int(whole) * 100 + int(hundredths))
    return json.dumps({"items": items, "cents": cents})


def is_unlucky(body: bytes) -> bool:
    """Returns True for an order whose first attempt fails."""
    return zlib.crc32(body) % BUSY == 0
