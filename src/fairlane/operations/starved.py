"""Finds a queue whose units all wait for requests of the queue that no unit is left to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.text import join_names, of_queue, plural
from fairlane.operations.find import list_workers
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import run_all

if TYPE_CHECKING:
    from fairlane.records import WorkerPage

_MOST_READ = 20  # awaited requests that are read
_SHOWN = 3
_FIELDS = ("state", "queue", "fresh")


class Starved(NamedTuple):
    """All `units` of a queue's workers wait, for these `requests` of it and perhaps for others."""

    queue: str
    units: int
    requests: tuple[str, ...]

    @property
    def text(self) -> str:
        """Returns what is wrong, in a sentence."""
        whose = join_names(list(self.requests[:_SHOWN]))
        more = f" and {len(self.requests) - _SHOWN:,} more" if len(self.requests) > _SHOWN else ""
        are = "waits" if self.units == 1 else "wait"
        return (
            f"{plural(self.units, 'unit')} of the workers of queue {self.queue}, all there are, "
            f"{are} in their handlers for calls of {whose}{more}, which no unit is left to run"
        )

    @property
    def remedy(self) -> str:
        """Returns what a person can do."""
        return (
            f"start another worker{of_queue(self.queue)}, or one with more --concurrency; a "
            "handler that waits for calls should submit them to another queue, or be a step of a "
            "flow"
        )


async def starved(queue: str, page: WorkerPage | None = None) -> Starved | None:
    """Returns what the units of a queue wait for, if no unit is left to run it; else None.

    Nothing but the workers is read unless all their units wait.
    """
    page = page or await list_workers(queue)
    alive = [one for one in page.workers if one.is_alive]
    if not alive or page.more or not all(one.awaits for one in alive):
        return None
    ids = list(dict.fromkeys(name for one in alive for name in one.awaits))[:_MOST_READ]
    rows = await run_all([hmget(name, *_FIELDS) for name in ids])
    waiting = []
    for name, row in zip(ids, rows, strict=True):
        state, home, fresh = parse_fields(_FIELDS, row)
        if (state, home) == ("active", queue) and int(fresh or 0):
            waiting.append(name)
    if not waiting:
        return None
    return Starved(queue, sum(one.units or 0 for one in alive), tuple(waiting))
