"""The asyncio driver: the same steps as `sync`, awaited."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import redis

from .. import settings
from ..retry import connection_delays
from ..steps import (
    At,
    Batch,
    Call,
    Command,
    Confirm,
    Confirmed,
    Handle,
    HandleBunch,
    Handled,
    Message,
    Nodes,
    Operation,
    Pause,
    Pop,
    Pull,
    Step,
    Subscribe,
    T,
    UntilHandled,
)
from . import routes, wire
from .aio_servers import Servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio.connection import Connection


class AsyncDriver:
    """Runs operations in one event loop."""

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = settings.PATIENCE_S,
        timeout_s: float = settings.SOCKET_TIMEOUT_S,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.servers = Servers(url, timeout_s)
        self.place = self.servers.place
        self.patience_s = patience_s
        self.give_up = give_up  # asked before each repeat: is the answer still wanted?
        self.modern: bool | None = None
        self.waits_for_disk = False
        self.is_replica = False  # as `check` found it

    async def run(
        self,
        operation: Operation[T],
        source: AsyncIterator[list[bytes]] | None = None,
        handle: Callable[[Handle | HandleBunch], Awaitable[Any]] | None = None,
    ) -> T:
        """The operation's result; raises what it raises.

        `source` answers its Pull steps, `handle` its Handle and HandleBunch steps; what goes on
        meanwhile is run as another task.
        """
        return await self.perform(operation, _Runner(self, source, handle))

    async def perform(self, operation: Operation[T], runner: _Runner) -> T:
        """The same by a runner that knows what it runs beside."""
        seen = _cancellations()
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
                if _cancellations() > seen and failure is None:
                    failure = asyncio.CancelledError()
                seen = _cancellations()
        finally:
            await runner.close()

    async def check(self) -> bool:
        """Connects and reads INFO once: is this server fit? Raises RedisUnreachable, RedisUnfit."""
        try:
            lines = await self.servers.lines_for(None)
            line = await lines.take()
            try:
                await line.send_command("INFO")
                info = await line.read_response()
                self.modern = wire.check_fitness(info, self.place)
                self.waits_for_disk = wire.has_waitaof(info)
                self.is_replica = wire.names_replica(info, self.url)
            except BaseException:
                await line.disconnect()
                raise
            lines.give(line)
        except (redis.RedisError, OSError) as error:
            raise wire.translate(error, self.place) from None
        return self.modern

    async def close(self) -> None:
        """Closes idle connections."""
        await self.servers.close()


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


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
        handle: Callable[[Handle | HandleBunch], Awaitable[Any]] | None,
        handled: asyncio.Event | None = None,
    ) -> None:
        self.driver = driver
        self.source = source
        self.handle = handle
        self.handled = handled  # only of an operation that runs beside a handler
        self.ear: Any = None  # the subscription, if the operation made one
        self.channel = b""

    async def perform(self, step: Step) -> Any:  # noqa: C901, PLR0911  one case a step
        match step:
            case Command() | Call():
                return await self._again(routes.key_of(step), lambda line: self._one(line, step))
            case Batch():
                return await self._spread(step)
            case Nodes():
                return await self._again(None, self._nodes)
            case At():
                return await self._again(step.node, lambda line: self._one(line, step.command))
            case Confirm():
                return await self._again(routes.key_of(step.step), partial(self._confirm, step))
            case Pause():
                return await asyncio.sleep(step.seconds)
            case Handle() if self.handle is not None:
                return await self.handle(step)
            case HandleBunch() if self.handle is not None:
                return await self._handle_bunch(step, self.handle)
            case UntilHandled() if self.handled is not None:
                return await _given(self.handled, step.timeout_s)
            case Pull():
                return await anext(self.source, None) if self.source is not None else None
            case Subscribe():
                return await self._subscribe(step.channel)
            case Message():
                return await self._message(step.timeout_s)
        raise TypeError(f"no driver performs {type(step).__name__} here")

    async def close(self) -> None:
        if self.ear is not None:
            await self.ear.disconnect()

    async def _handle_bunch(
        self, step: HandleBunch, handle: Callable[[HandleBunch], Awaitable[Any]]
    ) -> Handled:
        if step.meanwhile is None:
            return Handled(await handle(step))
        handled = asyncio.Event()
        runner = _Runner(self.driver, None, None, handled)
        beside = asyncio.create_task(self.driver.perform(step.meanwhile, runner))
        try:
            await asyncio.sleep(0)  # what it sends first goes out before a handler is in the way
            outcomes = await handle(step)
        except BaseException:
            beside.cancel()
            raise
        handled.set()
        try:
            return Handled(outcomes, await beside)
        except Exception as error:  # noqa: BLE001  the operation decides what it means
            return Handled(outcomes, None, error)

    async def _nodes(self, _: Connection) -> list[routes.Address | None]:
        return self.driver.servers.nodes

    async def _again(
        self,
        key: bytes | routes.Address | None,
        call: Callable[[Connection], Awaitable[Any]],
        *,
        keep: bool = False,
    ) -> Any:
        """One call, repeated while Redis does not answer; the same words each time."""
        driver = self.driver
        if driver.modern is None:
            await driver.check()
        delays = connection_delays(driver.patience_s)
        while True:
            line = None
            try:
                lines = await driver.servers.lines_for(key)
                line = await lines.take()
                reply = await call(line)
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await line.disconnect()
                is_final = driver.is_replica and wire.is_read_only(error)
                may_pass = wire.is_passing(error) and not is_final
                pause = next(delays, None) if may_pass else None
                if pause is None or driver.give_up():
                    raise wire.translate(error, driver.place, is_replica=is_final) from None
                driver.servers.moved()
                await asyncio.sleep(pause)
            except BaseException:  # cancelled in the middle of a reply: this line is out of step
                if line is not None:
                    await line.disconnect(nowait=True)
                raise
            else:
                if not keep:
                    lines.give(line)
                return reply

    async def _one(self, line: Connection, step: Command | Call) -> Any:
        modern = bool(self.driver.modern)
        await line.send_packed_command([wire.pack(step, modern=modern)])
        try:
            reply = await line.read_response()
        except redis.exceptions.NoScriptError:
            whole = wire.words(step, modern=modern, whole=True)
            await line.send_packed_command(line.pack_command(*whole))
            return await line.read_response()
        return wire.popped(reply, modern=modern) if isinstance(step, Pop) else reply

    async def _confirm(self, step: Confirm, line: Connection) -> Confirmed:
        reply = await self._one(line, step.step)
        commands = wire.confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        answers: list[Any] = []
        for command in commands:
            with wire.disk_may_be_missing(answers):
                answers.append(await self._one(line, command))
        return wire.confirmed(reply, answers)

    async def _spread(self, batch: Batch) -> list[Any]:
        """A batch: one round trip, in a cluster one for each node."""
        servers = self.driver.servers
        if servers.is_one:
            return await self._again(None, partial(self._batch, batch=batch))  # type: ignore[no-any-return]
        steps = batch.steps
        replies: list[Any] = [None] * len(steps)
        for key, indexes in routes.group(steps, servers.home):
            part = Batch([steps[i] for i in indexes], lenient=batch.lenient)
            found = await self._again(key, partial(self._batch, batch=part))
            for index, reply in zip(indexes, found, strict=True):
                replies[index] = reply
        return replies

    async def _batch(self, line: Connection, batch: Batch) -> list[Any]:
        modern = bool(self.driver.modern)
        for piece in wire.pieces(batch.steps, modern=modern):
            await line.send_packed_command([piece])
        replies: list[Any] = []
        for step in batch.steps:
            try:
                reply = await line.read_response(disconnect_on_error=False)
            except redis.exceptions.ResponseError as error:
                reply = await self._elsewhere(step) if wire.is_forgotten(error) else error
            replies.append(reply)
        wire.look_at(batch, replies, self.driver.place, modern=modern)
        return replies

    async def _elsewhere(self, step: Command | Call) -> Any:
        """A forgotten script, on a line of its own: behind it in the batch a pop may block.

        An error of the script is its reply, as it is in the batch.
        """
        lines = await self.driver.servers.lines_for(routes.key_of(step))
        line = await lines.take()
        try:
            reply = await self._one(line, step)
        except redis.exceptions.ResponseError as error:
            reply = error
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        lines.give(line)
        return reply

    async def _subscribe(self, channel: bytes) -> None:
        async def listen(line: Connection) -> Connection:
            await line.send_command("SUBSCRIBE", channel)
            await line.read_response()
            return line

        await self.close()
        self.channel = channel
        self.ear = await self._again(None, listen, keep=True)

    async def _message(self, timeout_s: float) -> Any:
        """A message, or None when time is up or the connection broke (then it subscribes anew)."""
        try:
            async with asyncio.timeout(timeout_s):
                return (await self.ear.read_response(disconnect_on_error=False))[-1]
        except TimeoutError:
            return None
        except (redis.RedisError, OSError):
            await self._subscribe(self.channel)
            return None
