"""The driver of the commands. It prints when Redis does not answer, and when it answers again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.cli.output import note
from fairlane.common import clock
from fairlane.drivers.driver import BACK, away
from fairlane.drivers.sync import SyncDriver
from fairlane.protocol.steps import Command, Message, NextChunk, Pause, forward

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.protocol.steps import Operation, Step, T


AWAY_S = 2.0  # a shorter outage is not reported


async def each_step(operation: Operation[T], perform: Callable[[Step], Operation[Any]]) -> T:
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
            reply = await perform(step)
        except GeneratorExit:
            operation.close()
            raise
        except BaseException as error:  # noqa: BLE001  the operation decides what it means
            failure = error


class CommandDriver(SyncDriver):
    """Prints one line when Redis has not answered for two seconds, and one when it answers again.

    At the first contact it prints that immediately. A server that hangs is noticed when the first
    call to it times out.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, patience_s=settings.PATIENCE_S, give_up=self._on_repeat)
        self._begun = self._since = 0.0
        self._is_noted = False
        self._quiet_s = AWAY_S

    def greet(self, queue: str | None = None) -> None:
        """Connects, and waits for a Redis that is not there yet, as any later call does.

        In a cluster it also waits for the primary of the queue. Raises RedisUnreachable,
        RedisUnfit.
        """
        self._quiet_s = 0.0
        try:
            self.check(self.patience_s)
            if queue is not None and not self.servers.is_one:
                from fairlane.operations.queues import reach

                self.run(reach(queue))
        finally:
            self._quiet_s = AWAY_S
        self._answered()

    def run(self, operation: Operation[T], *args: Any, **options: Any) -> T:
        """Runs an operation as its base class does."""
        return super().run(each_step(operation, self._perform), *args, **options)

    async def _perform(self, step: Step) -> Any:
        # A wait that Redis makes on purpose, as in a blocking pop, is no sign of an outage.
        is_wait = isinstance(step, Message) or (isinstance(step, Command) and b"BLOCK" in step.args)
        self._begun = 0.0 if is_wait else clock.mono_s()
        reply = await forward(step)
        if self._since and not isinstance(step, NextChunk | Pause):
            self._answered()
        return reply

    def _on_repeat(self) -> bool:
        """Notes that a call is repeated; returns False: the driver must not give up."""
        now = clock.mono_s()
        self._since = self._since or self._begun or now
        if not self._is_noted and now - self._since >= self._quiet_s:
            self._is_noted = True
            note(away(self.place, self.patience_s))
        return False

    def _answered(self) -> None:
        if self._is_noted:
            note(BACK)
        self._since, self._is_noted = 0.0, False
