"""Fairlane: a request queue on Redis with priorities, concurrency limits and nothing lost.

`Queue`, `Worker` and `submit_request` are what most programs need; `fairlane.aio` is the asyncio
twin of the queue. Names are loaded at first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bodies import content_id
    from .errors import FairlaneError
    from .model import Completion, Progress, Result
    from .queue import Queue, Request, submit_request
    from .worker import Context, Reject, Retry, Worker, batch_handler, time_limit

_HOMES = {
    "Completion": ".model",
    "Context": ".worker",
    "FairlaneError": ".errors",
    "Progress": ".model",
    "Queue": ".queue",
    "Reject": ".worker",
    "Request": ".queue",
    "Result": ".model",
    "Retry": ".worker",
    "Worker": ".worker",
    "batch_handler": ".worker",
    "content_id": ".bodies",
    "submit_request": ".queue",
    "time_limit": ".worker",
}

__all__ = [
    "Completion",
    "Context",
    "FairlaneError",
    "Progress",
    "Queue",
    "Reject",
    "Request",
    "Result",
    "Retry",
    "Worker",
    "batch_handler",
    "content_id",
    "submit_request",
    "time_limit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
