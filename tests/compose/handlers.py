"""The handlers of the workers in this run."""

from __future__ import annotations

import threading

SLOW_S = 0.02


def shout(body: bytes) -> bytes:
    return body.upper()


def shout_slowly(body: bytes) -> bytes:
    """Returns the body in capitals, slowly enough that a node is killed meanwhile."""
    threading.Event().wait(SLOW_S)
    return body.upper()
