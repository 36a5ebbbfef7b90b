"""The blocking driver: runs an operation's steps one after the other, on its own connections."""

from __future__ import annotations

import contextlib
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.drivers.driver import BACK, Driver, away
from fairlane.drivers.step_runner import StepRunner
from fairlane.drivers.sync.background import BackgroundRunner, OneShotEvent
from fairlane.drivers.sync.connections import Servers
from fairlane.drivers.sync.io import complete
from fairlane.protocol.steps import Handle, Handled, Operation, T

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.protocol.scripts import Dialect


class BlockingRunner(StepRunner):
    """Calls the handler and the source in the caller's thread."""

    async def handle(self, step: Handle) -> Handled:
        """Blocks until the handler has returned and the `meanwhile` has run in another thread."""
        operation = step.meanwhile
        if operation is None:
            return Handled(self._handle(step.leases))

        def run(sent: OneShotEvent, handled: OneShotEvent) -> Any:
            return complete(self.driver.start(operation, None, None, handled, sent.give))

        handle = partial(self._handle, step.leases)
        return self.driver.background.handle(handle, run)  # type: ignore[no-any-return]

    async def wait_until_handled(self, timeout_s: float) -> bool:
        """Blocks the thread of the `meanwhile`, which runs beside the handler's."""
        is_handled: bool = self._handled.wait(timeout_s)
        return is_handled

    async def next_chunk(self) -> list[bytes] | None:
        """Blocks until the source yields."""
        return next(self._source, None)


class SyncDriver(Driver[Servers]):
    """Runs operations; any thread may call `run` at any time."""

    SERVERS, RUNNER = Servers, BlockingRunner

    @cached_property
    def background(self) -> BackgroundRunner:
        """Returns the runner of operations that run beside a handler."""
        return BackgroundRunner()

    def run(
        self,
        operation: Operation[T],
        source: Iterator[list[bytes]] | None = None,
        handle: Callable[[Any], Any] | None = None,
    ) -> T:
        """Returns the operation's result; raises what it raises.

        `source` answers its NextChunk steps. `handle` is called with the leases of its Handle
        steps; both in the caller's thread. A `meanwhile` runs in another thread.
        """
        return complete(self.start(operation, source, handle))

    def check(self, patience_s: float = 0.0) -> Dialect:
        """Connects and reads INFO: see `find_dialect`."""
        return complete(self.find_dialect(patience_s))

    def meet(self, note: Callable[[str], None], patience_s: float = settings.PATIENCE_S) -> None:
        """Connects as `check` does, with this patience. `note` is called as in `noting`."""
        with self.noting(note, patience_s):
            self.check(patience_s)

    @contextlib.contextmanager
    def noting(self, note: Callable[[str], None], patience_s: float) -> Iterator[None]:
        """Calls are repeated for `patience_s` in the block.

        If one is, `note` gets a sentence immediately, and another one after the block.
        """
        before, is_noted = (self.patience_s, self.give_up), False

        def give_up() -> bool:
            nonlocal is_noted
            if not is_noted:
                is_noted = True
                note(away(self.place, patience_s))
            return before[1]()

        self.patience_s, self.give_up = patience_s, give_up
        try:
            yield
        finally:
            self.patience_s, self.give_up = before
        if is_noted:
            note(BACK)

    def close(self) -> None:
        """Closes idle connections."""
        complete(self.servers.close())
