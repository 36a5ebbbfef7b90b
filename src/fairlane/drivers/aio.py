"""The asyncio driver: the same steps as `sync`, awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from redis.asyncio.connection import Connection, ConnectionPool
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from .. import settings
from ..errors import RedisUnreachable
from ..retry import connection_delays
from ..steps import (
    At,
    Batch,
    Call,
    Command,
    Confirm,
    Confirmed,
    Handle,
    Message,
    Nodes,
    Operation,
    Pause,
    Pull,
    Step,
    Subscribe,
    T,
)
from . import routes, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence


class Lines:
    """Idle connections to one server, for one event loop."""

    def __init__(self, pool: Any, place: str) -> None:
        self.place = place
        self._pool = pool
        self._idle: deque[Connection] = deque()

    async def take(self) -> Connection:
        """A connection, made if none is idle. A Sentinel's asks for its master as it connects."""
        try:
            line = self._idle.pop()
        except IndexError:
            # Not pool.make_connection: it counts what it made and refuses after a hundred.
            line = self._pool.connection_class(**self._pool.connection_kwargs)
        await line.connect()  # nothing, if it is
        return line

    def give(self, line: Connection) -> None:
        """Back among the idle ones; a broken one reconnects at its next use."""
        self._idle.append(line)

    async def close(self) -> None:
        """Closes the idle connections; one in use closes when its owner is done."""
        while self._idle:
            await self._idle.pop().disconnect()


class Servers:
    """One server, or the primaries of a cluster as they are needed."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.place = wire.hide_secret(wire.check_url(url))
        self._options = wire.connection_options(timeout_s)
        self._one: Lines | None = None
        self._nodes: dict[routes.Address, Lines] = {}
        self._map: routes.SlotMap | None = None
        self._seeds: list[routes.Address] = []
        self._guards: list[Any] = []
        self.nodes: list[routes.Address | None] = [None]  # as At wants them, once asked for
        if url.startswith("redis+cluster:"):
            self._seeds, own = routes.split_cluster(url)
            self._options |= own
        else:
            self._one = Lines(self._pool(url), self.place)

    def _pool(self, url: str) -> Any:
        if not url.startswith("redis+sentinel:"):
            return wire.from_url(ConnectionPool, url, self._options)
        sentinels, master, own = wire.split_sentinel(url)
        guards = Sentinel(sentinels, sentinel_kwargs=self._options, **self._options, **own)
        self._guards = guards.sentinels
        return SentinelConnectionPool(master, guards, **self._options, **own)

    @property
    def is_one(self) -> bool:
        """True when every key lives on the same server."""
        return self._one is not None

    def home(self, key: bytes) -> routes.Address | None:
        """The node of this key as known now; None before the cluster was asked."""
        return self._map.home(key) if self._map is not None else None

    async def lines_for(self, key: bytes | routes.Address | None) -> Lines:
        """The connections to the server of this key, or to this primary.

        Asks a cluster for its slots when needed.
        """
        if self._one is not None:
            return self._one
        if self._map is None:
            self._map = await self._ask()
            self.nodes = [*self._map.nodes]
        if isinstance(key, tuple):
            if key in self._map.nodes:
                return self._node(key)
            raise RedisUnreachable(f"{key[0]}:{key[1]} is no primary of {self.place} any more")
        home = self._map.home(key) if key is not None else self._map.nodes[0]
        if home is None:
            self._map = None
            raise redis.exceptions.ClusterDownError("CLUSTERDOWN Hash slot not served")
        return self._node(home)

    def moved(self) -> None:
        """A node disowned a slot or fell silent: the slots are asked for anew."""
        self._map = None

    def _node(self, node: routes.Address) -> Lines:
        if node not in self._nodes:
            pool = ConnectionPool(host=node[0], port=node[1], **self._options)
            self._nodes[node] = Lines(pool, f"{node[0]}:{node[1]}")
        return self._nodes[node]

    async def _ask(self) -> routes.SlotMap:
        failure: Exception = RedisUnreachable(f"no node of {self.place} answers")
        for node in dict.fromkeys([*self._nodes, *self._seeds]):
            line = None
            try:
                line = await self._node(node).take()
                await line.send_command("CLUSTER", "SLOTS")
                found = routes.SlotMap(await line.read_response(), node[0])
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    await line.disconnect()
                failure = error
                continue
            self._node(node).give(line)
            if found.nodes:
                return found
        raise failure

    async def close(self) -> None:
        """Closes all idle connections."""
        for lines in [*self._nodes.values(), *([self._one] if self._one else [])]:
            await lines.close()
        for guard in self._guards:
            await guard.aclose()


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

    async def run(
        self,
        operation: Operation[T],
        source: AsyncIterator[list[bytes]] | None = None,
        handle: Callable[[Handle], Awaitable[Any]] | None = None,
    ) -> T:
        """The operation's result; raises what it raises.

        `source` answers its Pull steps, `handle` its Handle steps.
        """
        runner = _Runner(self, source, handle)
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


class _Runner:
    """Performs the steps of one run."""

    def __init__(
        self,
        driver: AsyncDriver,
        source: AsyncIterator[list[bytes]] | None,
        handle: Callable[[Handle], Awaitable[Any]] | None,
    ) -> None:
        self.driver = driver
        self.source = source
        self.handle = handle
        self.ear: Any = None  # the subscription, if the operation made one
        self.channel = b""

    async def perform(self, step: Step) -> Any:  # noqa: C901, PLR0911  one case a step
        match step:
            case Command() | Call():
                return await self._again(routes.key_of(step), lambda line: self._one(line, step))
            case Batch():
                return await self._spread(step.steps)
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
                pause = next(delays, None) if wire.is_passing(error) else None
                if pause is None or driver.give_up():
                    raise wire.translate(error, driver.place) from None
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
        await line.send_packed_command(line.pack_command(*wire.words(step, modern=modern)))
        try:
            return await line.read_response()
        except redis.exceptions.NoScriptError:
            whole = wire.words(step, modern=modern, whole=True)
            await line.send_packed_command(line.pack_command(*whole))
            return await line.read_response()

    async def _confirm(self, step: Confirm, line: Connection) -> Confirmed:
        reply = await self._one(line, step.step)
        commands = wire.confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        return wire.confirmed(reply, [await self._one(line, command) for command in commands])

    async def _spread(self, steps: Sequence[Command | Call]) -> list[Any]:
        """A batch: one round trip, in a cluster one for each node."""
        servers = self.driver.servers
        if servers.is_one:
            return await self._again(None, partial(self._batch, steps=steps))  # type: ignore[no-any-return]
        replies: list[Any] = [None] * len(steps)
        for key, indexes in routes.group(steps, servers.home):
            part = [steps[i] for i in indexes]
            found = await self._again(key, partial(self._batch, steps=part))
            for index, reply in zip(indexes, found, strict=True):
                replies[index] = reply
        return replies

    async def _batch(self, line: Connection, steps: Sequence[Command | Call]) -> list[Any]:
        modern = bool(self.driver.modern)
        packed: list[bytes] = []
        for step in steps:
            packed += line.pack_command(*wire.words(step, modern=modern))
        await line.send_packed_command([b"".join(packed)])
        replies: list[Any] = []
        for step in steps:
            try:
                replies.append(await line.read_response(disconnect_on_error=False))
            except redis.exceptions.ResponseError as error:
                is_forgotten = wire.is_forgotten(error)
                replies.append(await self._elsewhere(step) if is_forgotten else error)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _elsewhere(self, step: Command | Call) -> Any:
        """A forgotten script, on a line of its own: behind it in the batch a pop may block."""
        lines = await self.driver.servers.lines_for(routes.key_of(step))
        line = await lines.take()
        try:
            reply = await self._one(line, step)
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
