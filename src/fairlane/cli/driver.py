"""The driver of the commands. It prints when Redis does not answer, and when it answers again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.cli.output import note
from fairlane.common import clock
from fairlane.common.text import exact
from fairlane.drivers.sync.driver import SyncDriver
from fairlane.protocol.steps import Command, Message, NextChunk, Pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.protocol.steps import Operation, Step, T

AWAY_S = 2.0  # a shorter outage is not reported
BACK = "Redis answers again"


def away(place: str, patience_s: float) -> str:
    """Returns the sentence about a Redis that does not answer."""
    return f"Redis at {place} does not answer: trying for up to {exact(patience_s)} s"


def each_step(operation: Operation[T], perform: Callable[[Step], Operation[Any]]) -> Operation[T]:
    """Runs an operation; `perform` is the operation that performs each of its steps."""
    reply: Any = None
    failure: BaseException | None = None
    while True:
        try:
            step = operation.send(reply) if failure is None else operation.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        reply = failure = None
        try:
            reply = yield from perform(step)
        except GeneratorExit:
            operation.close()
            raise
        except BaseException as error:  # noqa: BLE001  the operation decides what it means
            failure = error


class CommandDriver(SyncDriver):
    """Prints one line when Redis has not answered for two seconds, and one when it answers again.

    A server that hangs is noticed when the first call to it times out.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, give_up=self._on_repeat)
        self._begun = self._since = 0.0
        self._is_noted = self._is_first = False

    def meet(self) -> None:
        """Connects, and waits for a Redis that is not there yet, as any later call does.

        The wait is named immediately. Raises RedisUnreachable, RedisUnfit.
        """
        self._is_first = True
        try:
            self.check(self.patience_s)
        finally:
            self._is_first = False
        self._answered()

    def run(self, operation: Operation[T], *args: Any, **options: Any) -> T:
        """Runs an operation as its base class does."""
        return super().run(each_step(operation, self._perform), *args, **options)

    def _perform(self, step: Step) -> Operation[Any]:
        # A wait that Redis makes on purpose, as in a blocking pop, is no sign of an outage.
        is_wait = isinstance(step, Message) or (isinstance(step, Command) and b"BLOCK" in step.args)
        self._begun = 0.0 if is_wait else clock.mono_s()
        reply = yield step
        if self._since and not isinstance(step, NextChunk | Pause):
            self._answered()
        return reply

    def _on_repeat(self) -> bool:
        """Notes that a call is repeated; returns False: the driver must not give up."""
        now = clock.mono_s()
        self._since = self._since or self._begun or now
        if not self._is_noted and (self._is_first or now - self._since >= AWAY_S):
            self._is_noted = True
            note(away(self.place, self.patience_s))
        return False

    def _answered(self) -> None:
        if self._is_noted:
            note(BACK)
        self._since, self._is_noted = 0.0, False
