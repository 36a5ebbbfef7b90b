"""The asyncio driver: runs the operations of many tasks in one event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis

from fairlane.drivers.aio.calls import AsyncCalls
from fairlane.drivers.aio.connections import Servers
from fairlane.drivers.driver import Driver
from fairlane.drivers.step_runner import StepRunner
from fairlane.drivers.wire import error_mapping
from fairlane.protocol.steps import Handle, Handled, Operation, T

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fairlane.drivers.aio.connections import ServerConnections
    from fairlane.drivers.aio.multiplexed import MultiplexedConnection
    from fairlane.protocol.scripts import Dialect


class LoopRunner(StepRunner):
    """Awaits the handler and the source of chunks."""

    CALLS = AsyncCalls

    async def handle(self, step: Handle) -> Handled:
        """Awaits the handler, and the `meanwhile` in another task."""
        if step.meanwhile is None:
            return Handled(await self._handle(step.leases))
        handled = asyncio.Event()
        meanwhile = asyncio.create_task(self.driver.start(step.meanwhile, None, None, handled))
        try:
            for _ in range(2):  # so its first steps are sent before the handler may block the loop
                await asyncio.sleep(0)
            leases = await self._handle(step.leases)
        except BaseException:
            meanwhile.cancel()
            raise
        handled.set()
        try:
            return Handled(leases, await meanwhile)
        except Exception as error:  # noqa: BLE001  the operation decides what it means
            return Handled(leases, None, error)

    async def wait_until_handled(self, timeout_s: float) -> bool:
        """Lets the task of the handler run; returns True if the handler has returned."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._handled.wait()  # type: ignore[no-any-return]
        except TimeoutError:
            return False

    async def next_chunk(self) -> list[bytes] | None:
        """Awaits the next chunk."""
        return await anext(self._source, None)


class AsyncDriver(Driver[Servers]):
    """Runs operations in one event loop."""

    SERVERS, RUNNER = Servers, LoopRunner

    async def run(
        self,
        operation: Operation[T],
        source: AsyncIterator[list[bytes]] | None = None,
        handle: Callable[[Any], Awaitable[Any]] | None = None,
    ) -> T:
        """Awaits the operation's result; raises what the operation raises.

        `source` answers its NextChunk steps. `handle` is called with the leases of its Handle
        steps; a `meanwhile` runs as another task.
        """
        self.servers.enter()
        return await self.start(operation, source, handle)

    async def check(self, patience_s: float = 0.0) -> Dialect:
        """Awaits a connection and INFO: see `find_dialect`."""
        self.servers.enter()
        return await self.find_dialect(patience_s)

    async def drop_shared(
        self, lines: ServerConnections, shared: MultiplexedConnection, error: Exception
    ) -> None:
        """Drops the shared connection after an error, once for all tasks with a call on it.

        The connection takes no more calls. If it is not broken, waiting calls still get replies.
        """
        is_cut = not isinstance(error, redis.exceptions.ResponseError)
        if is_cut and not shared.is_cut:
            shared.is_cut = True
            self.on_cut()
        if shared.is_dropped:
            return
        shared.is_dropped = True
        if not lines.shares(shared):  # another one has replaced it: the error is old
            shared.retire()
            return
        self.servers.moved()
        if is_cut:
            self.servers.failed(lines)
        elif error_mapping.is_cut_off(error):
            self.servers.distrust(lines)
        await lines.close()

    async def close(self) -> None:
        """Closes idle connections, and each shared one after its last reply."""
        await self.servers.close()
