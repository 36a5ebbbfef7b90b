"""What the workers of this run do."""

from __future__ import annotations

import threading

SLOW_S = 0.02


def shout(body: bytes) -> bytes:
    return body.upper()


def shout_slowly(body: bytes) -> bytes:
    """Work that is still going on when a node is killed."""
    threading.Event().wait(SLOW_S)
    return body.upper()
