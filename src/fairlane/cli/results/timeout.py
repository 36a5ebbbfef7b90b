"""How long the reader of results waits, and what is said when nothing comes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from fairlane.cli.exit_status import counts_of
from fairlane.cli.output import note
from fairlane.common import clock
from fairlane.protocol.steps import Command
from fairlane.settings import BLOCK_MS

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation
    from fairlane.queue import Request

QUIET_S = 5.0  # after so long without a result it is said, once, what is waited for


class ReadTimeout:
    """Runs what reads results of a request, for `timeout` seconds in all."""

    def __init__(self, request: Request, timeout: float | None) -> None:
        now = clock.mono_s()
        self._request, self._driver = request, request.queue.driver
        self._timeout = timeout
        self._end = inf if timeout is None else now + timeout
        self._quiet_until = now + QUIET_S if timeout is None else inf
        self._has_asked = False

    def seen(self) -> None:
        """A result has come."""
        if self._quiet_until < inf:
            self._quiet_until = clock.mono_s() + QUIET_S

    def run(self, operation: Operation[Any]) -> Any:
        """The operation's result. Raises WaitTimeout, but asks once however short the time."""
        now = clock.mono_s()
        if self._has_asked and now >= self._end:
            self._end_of_time()
        if now >= self._quiet_until:
            self._say_what_is_waited_for()
        self._has_asked = True
        left_ms = (min(self._end, self._quiet_until) - now) * 1000
        block_ms = max(1, int(min(left_ms, BLOCK_MS)))
        return self._driver.run(_hastened(operation, block_ms))

    def _end_of_time(self) -> None:
        """Goes on with what has ended: all its results are there."""
        now = counts_of(self._request)
        if not now.ended:
            from fairlane.operations.control.completion import timed_out

            counts = f": {now.done:,}/{now.total:,} done"
            raise self._driver.run(timed_out(now.id, now.queue, self._timeout or 0.0, counts))
        self._end = inf

    def _say_what_is_waited_for(self) -> None:
        self._quiet_until = inf
        now = counts_of(self._request)
        if not now.ended:
            from fairlane.operations.control.overview import unserved

            note(
                f"no result for {QUIET_S:g} s: waiting for request {now.id} to go on, it is "
                f"{now.state} with {now.done:,}/{now.total:,} done"
                + self._driver.run(unserved(now.queue))
            )


def _hastened(operation: Operation[Any], block_ms: int) -> Operation[Any]:
    """The operation, but its blocking read blocks for `block_ms`."""
    reply: Any = None
    while True:
        try:
            step = operation.send(reply)
        except StopIteration as end:
            return end.value
        if isinstance(step, Command) and step.args[0] == b"XREAD" and b"BLOCK" in step.args:
            at = step.args.index(b"BLOCK") + 1
            step = Command(*step.args[:at], block_ms, *step.args[at + 1 :])
        reply = yield step
