"""The notice about a request that makes no progress: it is paused, or its queue has no worker."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fairlane.cli.exit_status import known, so_far
from fairlane.cli.output import note
from fairlane.common import clock
from fairlane.common.text import exact

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation, Step, T
    from fairlane.records import Progress

QUIET_S = 5.0  # after so long without progress
AGAIN_S = 1.5  # a worker is missing if two looks find none: after an outage a heartbeat may be late


async def what_is_missing(now: Progress) -> str:
    """Returns what lets a request go on if it is paused or no worker serves its queue, else ""."""
    from fairlane.operations.estimate import read_request
    from fairlane.operations.why import GATED, own_cause
    from fairlane.operations.workers import unserved

    if now.state == "paused":
        return f"fairlane resume {now.id} lets it go on"
    facts = await read_request(now.id) if now.opens_ms else None
    cause = own_cause(facts) if facts is not None else None
    if cause is not None and cause.kind in GATED:
        return cause.text
    return await unserved(now.queue) if now.left else ""


class StallNotice:
    """Prints once that a request makes no progress, because it is paused or has no worker.

    If it `reads` results, their reader also gets the notice for any other reason.
    """

    def __init__(self, request_id: str, *, reads: bool = False) -> None:
        self._id, self._reads = request_id, reads
        self._settled = 0
        self._seen_missing = False
        self._due = clock.mono_s() + QUIET_S

    @property
    def left_s(self) -> float:
        """Returns the seconds until the next look is due."""
        return max(0.0, self._due - clock.mono_s())

    def put_off(self) -> None:
        """Notes progress."""
        if self._due < inf:
            self._due, self._seen_missing = clock.mono_s() + QUIET_S, False

    async def look(self, now: Progress | None = None) -> None:
        """Prints the notice if it is due; `now` are the counts if they were read. RequestLost."""
        if now is not None and now.total - now.left != self._settled:
            self._settled = now.total - now.left
            self.put_off()
        if clock.mono_s() < self._due:
            return
        if now is None:
            from fairlane.operations.request_state import progress

            with known(self._id):
                now = await progress(self._id)
        missing = "" if now.ended else await what_is_missing(now)
        if missing and not self._seen_missing:
            self._due, self._seen_missing = clock.mono_s() + AGAIN_S, True
        elif missing or (self._reads and not now.ended):
            self._due = inf
            quiet = f"no result for {exact(QUIET_S)} s: " if self._reads else ""
            counts = f"is {now.state} with {now.done:,}/{now.total:,} done{so_far(now)}"
            note(f"{quiet}request {now.id} {counts}" + (f"; {missing}" if missing else ""))
        else:
            self.put_off()

    async def during(self, wait: Operation[T]) -> T:
        """Runs an operation that waits for messages, and looks before it waits."""
        from fairlane.cli.driver import each_step
        from fairlane.protocol.steps import Message, forward

        async def perform(step: Step) -> object:
            if isinstance(step, Message):
                await self.look()
                step = Message(min(step.timeout_s, self.left_s))
            return await forward(step)

        return await each_step(wait, perform)
