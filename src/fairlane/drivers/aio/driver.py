"""The asyncio driver: the same steps as `sync`, awaited."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import redis

from fairlane.drivers.aio.connections import ServerConnections, Servers
from fairlane.drivers.aio.executor import Calls
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.driver import Driver, FirstContact
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Confirm,
    Handle,
    Handled,
    Hurry,
    Message,
    NextChunk,
    Nodes,
    OnNode,
    Operation,
    Pause,
    SingleServer,
    Step,
    Subscribe,
    T,
    TextCall,
    UntilHandled,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio.connection import Connection

    from fairlane.drivers.aio.multiplexed import MultiplexedConnection
    from fairlane.protocol.scripts import Dialect


class AsyncDriver(Driver[Servers]):
    """Runs operations in one event loop."""

    SERVERS = Servers

    async def run(
        self,
        operation: Operation[T],
        source: AsyncIterator[list[bytes]] | None = None,
        handle: Callable[[Any], Awaitable[Any]] | None = None,
        *,
        until: float = math.inf,
        away_s: float | None = None,
    ) -> T:
        """The operation's result; raises what it raises.

        `source` answers its NextChunk steps. `handle` is called with the leases of its Handle
        steps; what goes on meanwhile is run as another task. `until`, `away_s`: see Calls.
        """
        runner = _Runner(self, source, handle)
        runner.calls.until, runner.calls.away_s = until, away_s
        return await self.perform(operation, runner)

    async def perform(self, operation: Operation[T], runner: _Runner) -> T:
        """The same by a runner that knows what it runs beside."""
        self.servers.enter()
        task = asyncio.current_task()
        seen = task.cancelling() if task is not None else 0
        try:
            reply: Any = None
            failure: BaseException | None = None
            while True:
                try:
                    step = operation.send(reply) if failure is None else operation.throw(failure)
                except StopIteration as end:
                    result: T = end.value
                    return result
                failure = reply = None
                try:
                    reply = await runner.perform(step)
                except BaseException as error:  # noqa: BLE001  the operation decides what it means
                    failure = error
                # wait_for of Python 3.11, under redis-py, may swallow a cancellation.
                if task is not None and (now := task.cancelling()) != seen:
                    if now > seen and failure is None:
                        failure = asyncio.CancelledError()
                    seen = now
        finally:
            await runner.close()

    async def check(self, patience_s: float = 0.0) -> Dialect:
        """Connects and reads INFO: is this server fit? Raises RedisUnreachable, RedisUnfit.

        `patience_s` as in FirstContact. Of a cluster all primaries that answer are asked.
        """
        self.servers.enter()
        contact = FirstContact(self, patience_s)
        while True:
            try:
                return self.learn(await self._infos())
            except (redis.RedisError, OSError) as error:
                pause = contact.pause(error)
                if pause is None:
                    raise error_mapping.translate(error, self.place) from None
                await asyncio.sleep(pause)

    async def _infos(self) -> list[bytes]:
        servers = self.servers
        if servers.is_one:
            return [await self._info(await servers.lines_for(None))]
        found: list[bytes] = []
        failure: Exception | None = None
        for node in (await servers.slots()).nodes:
            try:
                found.append(await self._info(servers.lines_at(node)))
            except (redis.RedisError, OSError) as error:
                if not error_mapping.is_passing(error):
                    raise
                failure = error
        if failure is not None and not found:
            raise failure
        return found

    async def _info(self, lines: ServerConnections) -> bytes:
        line = None
        try:
            line = await lines.take()
            await line.send_command("INFO")
            info: bytes = await line.read_response()
        except (redis.RedisError, OSError) as error:
            await self.drop(lines, line, error)
            raise
        except BaseException:
            if line is not None:
                await line.disconnect(nowait=True)
            raise
        lines.give(line)
        return info

    async def drop(
        self, lines: ServerConnections | None, line: Connection | None, error: Exception
    ) -> None:
        """A line after an error. When it broke, the idle ones to that server are no better.

        Nor are they when the server was demoted or is cut off.
        """
        if line is not None:
            await line.disconnect()
        self.servers.moved()
        if lines is None:
            return
        if not isinstance(error, redis.exceptions.ResponseError):
            await lines.close()
            self.servers.failed(lines)
            if line is not None:
                self.on_cut()
        elif self.spoils(error):
            await lines.close()
            if error_mapping.is_cut_off(error):
                self.servers.distrust(lines)

    async def drop_shared(
        self, lines: ServerConnections, shared: MultiplexedConnection, error: Exception
    ) -> None:
        """The same for the connection that all share, once for all whose calls were on it.

        Nobody asks it anything from now on; if it is not broken, those who wait have their answers.
        """
        is_cut = not isinstance(error, redis.exceptions.ResponseError)
        if is_cut and not shared.is_cut:
            shared.is_cut = True
            self.on_cut()
        if shared.is_dropped:
            return
        shared.is_dropped = True
        if not lines.shares(shared):  # there is another one, or none, since: this is no news
            shared.retire()
            return
        self.servers.moved()
        if is_cut:
            self.servers.failed(lines)
        elif error_mapping.is_cut_off(error):
            self.servers.distrust(lines)
        await lines.close()

    async def close(self) -> None:
        """Closes idle connections, and what is shared as soon as its last answer is there."""
        await self.servers.close()


async def _given(event: asyncio.Event, timeout_s: float) -> bool:
    """True when it was set within that time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


class _Runner:
    """Performs the steps of one run."""

    def __init__(
        self,
        driver: AsyncDriver,
        source: AsyncIterator[list[bytes]] | None,
        handle: Callable[[Any], Awaitable[Any]] | None,
        handled: asyncio.Event | None = None,
    ) -> None:
        self.driver = driver
        self.source = source
        self.handle = handle
        self.handled = handled  # only of an operation that runs beside a handler
        self.calls = Calls(driver)
        self.ear: Any = None  # the subscription, if the operation made one
        self.channel = b""

    def perform(self, step: Step) -> Awaitable[Any]:
        """Of what a worker asks thousands of times a second, the shortest way there is."""
        kind = type(step)
        if kind is TextCall or kind is Call or kind is Command:
            return self.calls.call(step)  # type: ignore[arg-type]
        if kind is Batch:
            return self.calls.spread(step)  # type: ignore[arg-type]
        if kind is SingleServer:
            return self.calls.across(step)  # type: ignore[arg-type]
        if kind is Handle and self.handle is not None:
            return self._handle(step, self.handle)  # type: ignore[arg-type]
        return self._perform(step)

    async def _perform(self, step: Step) -> Any:  # noqa: C901, PLR0911  one case a step
        match step:
            case Command() | Call():
                return await self.calls.call(step)
            case Nodes():
                return await self.calls.again(None, self._nodes)
            case OnNode():
                return await self.calls.again(
                    step.node, lambda line: self.calls.one(line, step.command)
                )
            case Confirm():
                confirm, asked = partial(self.calls.confirm, step), step.step
                return await self.calls.again(slot_map.key_of(asked), confirm, away_s=asked.away_s)
            case Pause():
                return await asyncio.sleep(step.seconds)
            case UntilHandled() if self.handled is not None:
                return await _given(self.handled, step.timeout_s)
            case Hurry():  # asyncio cancels the task instead
                return None
            case NextChunk():
                return await anext(self.source, None) if self.source is not None else None
            case Subscribe():
                return await self._subscribe(step.channel)
            case Message():
                return await self._message(step.timeout_s)
        raise TypeError(f"no driver performs {type(step).__name__} here")

    async def close(self) -> None:
        if self.ear is not None:
            await self.ear.disconnect()

    async def _handle(self, step: Handle, handle: Callable[[Any], Awaitable[Any]]) -> Handled:
        if step.meanwhile is None:
            return Handled(await handle(step.leases))
        handled = asyncio.Event()
        runner = _Runner(self.driver, None, None, handled)
        beside = asyncio.create_task(self.driver.perform(step.meanwhile, runner))
        try:
            for _ in range(2):  # it asks; that goes out; only then a handler may be in the way
                await asyncio.sleep(0)
            leases = await handle(step.leases)
        except BaseException:
            beside.cancel()
            raise
        handled.set()
        try:
            return Handled(leases, await beside)
        except Exception as error:  # noqa: BLE001  the operation decides what it means
            return Handled(leases, None, error)

    async def _nodes(self, _: Connection) -> list[slot_map.Address | None]:
        return self.driver.servers.nodes

    async def _subscribe(self, channel: bytes) -> None:
        async def listen(line: Connection) -> Connection:
            await line.send_command(*encoding.subscription(channel, self.calls.dialect))
            await line.read_response()
            return line

        await self.close()
        self.channel = channel
        self.ear = await self.calls.again(channel, listen, keep=True)

    async def _message(self, timeout_s: float) -> Any:
        """A message, or None when time is up or the connection broke (then it subscribes anew)."""
        try:
            async with asyncio.timeout(timeout_s):
                return encoding.message(await self.ear.read_response(disconnect_on_error=False))
        except TimeoutError:
            return None
        except (redis.RedisError, OSError):
            await self._subscribe(self.channel)
            return None
