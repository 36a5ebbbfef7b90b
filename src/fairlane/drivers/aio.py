"""The driver for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import lru_cache, partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

import hiredis
import redis
from redis.asyncio import connection, sentinel

from fairlane.common import clock
from fairlane.drivers import error_mapping, topology, urls
from fairlane.drivers.calls import (
    BatchTurns,
    Calls,
    StepRunner,
    may_block,
    pack,
    popped,
    take_buffered,
)
from fairlane.drivers.driver import ConnectionSet, Driver, ServerSet
from fairlane.drivers.error_mapping import name_of
from fairlane.drivers.topology import NodePart, batch_of, kinds_of
from fairlane.errors import FairlaneError
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Handle,
    Handled,
    Operation,
    Pop,
    Signal,
    T,
    key_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from redis.asyncio.connection import Connection

    from fairlane.drivers.urls import Address
    from fairlane.protocol.lua import Dialect

    SharedCall: TypeAlias = "tuple[MultiplexedConnection, asyncio.Future[Any]]"


# ------------------------------------------------------------------ single flight
# Single flight: one run serves all tasks that wait for it, also if some are cancelled.


_AGAIN_S = 0.05


class SingleFlight(Generic[T]):
    """Runs `make` as its own task; every caller meanwhile waits for that run."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._task: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Returns what `make` returns. Raises what it raises, and ConnectionError if stopped."""
        me = asyncio.current_task()
        seen = me.cancelling() if me is not None else 0
        task = self._task
        if task is None:
            task = self._task = asyncio.create_task(self._make())
            task.add_done_callback(self._over)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            is_me = me is not None and me.cancelling() > seen
            if is_me or not task.cancelled():  # the caller itself was cancelled
                raise
            raise redis.ConnectionError("Connection closed.") from None

    async def stop(self) -> None:
        """Cancels the run until it ends; asyncio.wait_for of Python 3.11 may swallow a cancel."""
        task = self._task
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_AGAIN_S)

    def forget(self) -> None:
        """Drops the run. For a run whose event loop has ended, which never finishes."""
        self._task = None

    def _over(self, task: asyncio.Task[T]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # else asyncio logs it as never retrieved; the callers have raised it


# ------------------------------------------------------------------ multiplexed
# One connection that all tasks of an event loop share: calls of one turn leave in one write.
#
# redis-py connects and logs in as usual; then this protocol takes its transport. A call costs a
# future and its share of a write and of a read, but no task, no timer and no stream.


CALLS_PER_WRITE = 8  # the server runs these while other tasks of the same turn make calls
_BUFFER = 1 << 16


class MultiplexedConnection(asyncio.BufferedProtocol):
    """Sends calls, and resolves the future of each in order.

    `timeout_s`: if a call waits and no byte comes for so long, the connection breaks; None = never.
    """

    def __init__(self, line: Any, timeout_s: float | None) -> None:
        """Takes over a connection of redis-py without unread replies.

        The private attributes used here exist since redis-py 5.
        """
        self.loop = asyncio.get_running_loop()
        self.is_open = True  # takes calls
        self.is_dropped = False  # the driver has handled an error on it ...
        self.is_cut = False  # ... and has reported that replies were lost with it
        self.timeout_s = timeout_s
        self._line = line
        self._reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=line._parser.parse_error,  # noqa: SLF001
        )
        self._buffer = bytearray(_BUFFER)
        self._room = memoryview(self._buffer)  # TLS writes into slices of it, not into copies
        self._waiting: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._replies: list[Any] = []  # of the first waiting call
        self._out: list[bytes] = []
        self._is_due = False  # a write follows when this turn ends
        self._is_held = False  # the socket is full
        self._last_byte_at = 0.0  # when the last byte came, or the first was sent
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport = line._writer.transport  # noqa: SLF001
        self._transport.set_protocol(self)

    # ------------------------------------------------------------------ asking

    def ask(self, packed: bytes, count: int = 0) -> asyncio.Future[Any]:
        """Sends one command, or `count` commands, and returns the future of the reply or replies.

        An error of the server is a reply. The future raises if the connection breaks first. The
        replies to a cancelled call are dropped, and other calls are not affected.
        """
        future: asyncio.Future[Any] = asyncio.Future(loop=self.loop)
        self._waiting.append((future, count))
        out = self._out
        out.append(packed)
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._end_turn)
        elif len(out) >= CALLS_PER_WRITE:
            self._send()
        return future

    def _end_turn(self) -> None:
        """Sends the rest of a turn's calls, after all tasks of that turn of the loop ran."""
        self._is_due = False
        self._send()

    def _send(self) -> None:
        out = self._out
        if not out:
            return
        if self._timer is None and self.timeout_s is not None:
            self._timer = self.loop.call_later(self.timeout_s, self._check_timeout)
        if not (self._is_held or self._transport.is_closing()):
            if len(out) == len(self._waiting):  # no earlier call waits
                self._last_byte_at = self.loop.time()
            self._out = []
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def pause_writing(self) -> None:
        """Holds writes: the socket is full."""
        self._is_held = True

    def resume_writing(self) -> None:
        """Sends what was held."""
        self._is_held = False
        self._send()

    # ------------------------------------------------------------------ answers

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Returns the buffer to read into."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Parses the bytes that came."""
        self._last_byte_at = self.loop.time()
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]
            self._resolve()
        except redis.RedisError as error:
            self._break(partial(type(error), *error.args))

    def _resolve(self) -> None:
        gets, waiting = self._reader.gets, self._waiting
        while (reply := gets()) is not False:
            if not waiting:
                raise redis.exceptions.InvalidResponse(f"a reply to nothing: {reply!r}")
            future, count = waiting[0]
            if count:
                self._replies.append(reply)
                if len(self._replies) < count:
                    continue
                reply, self._replies = self._replies, []
            waiting.popleft()
            if not future.done():
                future.set_result(reply)
        if not waiting and not self.is_open:
            self._close()

    # ------------------------------------------------------------------ the end

    def retire(self) -> None:
        """Takes no more calls, and closes when no call waits."""
        self.is_open = False
        if all(future.done() for future, _ in self._waiting):
            self._close()

    async def gone(self) -> None:
        """Waits until it is closed, if it is closing: with TLS that takes a moment."""
        if self._transport.is_closing():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_s):
                    await self._gone.wait()

    def eof_received(self) -> None:
        """Breaks the connection: the server closed it."""
        self._break(partial(redis.ConnectionError, "Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        """Fails waiting calls, if any: the connection broke or was closed."""
        self._gone.set()
        if error is None:
            return self.eof_received()
        text = f"Error while reading from {name_of(self._line)} : {error.args}"
        return self._break(partial(redis.ConnectionError, text))

    def _check_timeout(self) -> None:
        """Breaks the connection if its server does not answer."""
        self._timer = None
        if not self._waiting or self.timeout_s is None:
            return
        left_s = self._last_byte_at + self.timeout_s - self.loop.time()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._check_timeout)
        else:
            self._timer = self.loop.call_later(_AGAIN_S, self._give_up, self._last_byte_at)

    def _give_up(self, last_byte_at: float) -> None:
        if self._last_byte_at > last_byte_at or not self._waiting:
            self._check_timeout()
            return
        text = f"Timeout reading from {name_of(self._line)}"
        self._break(partial(redis.TimeoutError, text))

    def _break(self, make_error: Callable[[], Exception]) -> None:
        """Fails each waiting call with an error of its own.

        The first call may have some of its replies: it gets them, and errors for the others.
        """
        self.is_open = False
        waiting, replies = [*self._waiting], self._replies
        self._waiting.clear()
        self._replies = []
        self._transport.abort()
        self._close()
        for future, count in waiting:
            if future.done():
                pass
            elif replies:
                future.set_result(replies + [make_error() for _ in range(count - len(replies))])
            else:
                future.set_exception(make_error())
                future.exception()  # a task that is cancelled now does not retrieve it
            replies = []

    def _close(self) -> None:
        self._out = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.loop.is_closed():
            self._line._close()  # noqa: SLF001


# ------------------------------------------------------------------ io
# Performs the primitives of both drivers in an event loop.


class AsyncIO:
    """Returns what redis-py's asyncio connections return, to be awaited. See Primitives."""

    def connection_class(self, kind: Any) -> Any:
        """Returns the class with an abandon that never waits for the other side."""
        return _hanging_up(kind)

    def connect(self, line: Any) -> Awaitable[None]:
        """Awaits the login."""
        connecting: Awaitable[None] = line.connect()
        return connecting

    def is_open(self, line: Any) -> bool:
        """Returns True if the connection has its streams."""
        is_open: bool = line.is_connected
        return is_open

    async def ask(self, line: Any, packed: bytes) -> Any:
        """Awaits the reply."""
        await line.send_packed_command([packed])
        return await line.read_response()

    def send(self, line: Any, packed: bytes) -> Awaitable[None]:
        """Awaits room in the buffer of the socket."""
        sending: Awaitable[None] = line.send_packed_command([packed])
        return sending

    def send_command(self, line: Any, *words: Any) -> Awaitable[None]:
        """Awaits the same as `send`, for one command."""
        sending: Awaitable[None] = line.send_command(*words)
        return sending

    def receive(self, line: Any) -> Awaitable[Any]:
        """Awaits one reply."""
        reply: Awaitable[Any] = line.read_response()
        return reply

    async def receive_many(self, line: Any, most: int) -> list[Any]:
        """Awaits the next reply, and takes those that came with it, until there are enough."""
        replies: list[Any] = []
        try:
            while take_buffered(line, replies, most):
                replies.append(await line.read_response(disconnect_on_error=False))
        except (redis.RedisError, OSError) as error:
            replies.append(error)
        return replies

    async def listen(self, line: Any, timeout_s: float) -> Any:
        """Awaits one published reply."""
        try:
            async with asyncio.timeout(timeout_s):
                return await line.read_response(disconnect_on_error=False)
        except TimeoutError:
            return None

    def disconnect(self, line: Any) -> Awaitable[None]:
        """Awaits the end of the connection."""
        closing: Awaitable[None] = line.disconnect()
        return closing

    def abandon(self, line: Any) -> Awaitable[None]:
        """Aborts the transport without waiting, because the task was cancelled."""
        closing: Awaitable[None] = line.disconnect(nowait=True)
        return closing

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Lets other tasks run."""
        return asyncio.sleep(seconds)

    def task(self) -> asyncio.Task[Any] | None:
        """Returns the current task."""
        return asyncio.current_task()

    def close_client(self, client: Any) -> Awaitable[None]:
        """Awaits the end of the client's connections."""
        closing: Awaitable[None] = client.aclose()
        return closing

    def refuse_plain(self, options: dict[str, Any]) -> Awaitable[None]:
        """Awaits the reply to a plain PING."""
        return urls.refuse_plain_async(options)


@lru_cache(maxsize=16)
def _hanging_up(kind: Any) -> Any:
    """Returns a subclass that closes an abandoned connection immediately.

    A TLS connection notifies the other side and waits for its answer: if the event loop ends
    before, the socket is left behind.
    """

    class HangingUp(kind):  # type: ignore[misc]
        async def disconnect(self, nowait: Any = None, **given: Any) -> None:
            if nowait and self._writer is not None:
                self._writer.transport.abort()
            await super().disconnect(bool(nowait), **given)

    return HangingUp


# ------------------------------------------------------------------ connections
# The connections of the asyncio driver: idle ones, and a shared one for each server.


class ServerConnections(ConnectionSet):
    """Connections to one server, for one event loop: idle ones, and one that all tasks share."""

    IO = AsyncIO()

    def __init__(self, pool: Any, place: str) -> None:
        super().__init__(pool, place)
        self._shared: MultiplexedConnection | None = None
        self._making = SingleFlight(self._make)

    @property
    def shared(self) -> MultiplexedConnection | None:
        """Returns the shared connection, if there is one and it is usable."""
        shared = self._shared
        if shared is None or not shared.is_open or self.probes_first:
            return None
        return shared

    async def share(self) -> MultiplexedConnection:
        """Returns the shared connection. If there is none, one is made, once for all callers.

        Raises what connecting raises.
        """
        if (shared := self.shared) is not None:
            return shared
        made = await self._making.result()
        if not made.is_open:  # it broke before it was our turn
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        return made

    async def _make(self) -> MultiplexedConnection:
        if self.may_be_plain:
            await self._greet()
        if self.probes_first:
            await self._probe()
            if (shared := self.shared) is not None:  # it was usable all the time
                return shared
        line = await self._fresh()
        if _has_ended(line):  # another protocol that took it over would not get the EOF
            await line.disconnect(nowait=True)
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        if self._shared is not None:
            self._shared.retire()
        self._shared = MultiplexedConnection(line, line.socket_timeout)
        return self._shared

    async def _fresh(self) -> Connection:
        """Opens a new connection; an idle one may already have received EOF."""
        line: Connection = self._new()
        try:
            await line.connect()
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        return line

    def shares(self, shared: MultiplexedConnection) -> bool:
        """Returns True if this is still the shared connection."""
        return self._shared is shared

    def forget(self) -> None:
        """Drops the connections of an event loop that has ended."""
        self._shared = None
        self._making.forget()
        self._idle.clear()

    async def close(self) -> None:
        """Closes the idle connections. The shared one closes after its last reply has come."""
        if (shared := self._shared) is not None:
            self._shared = None
            shared.retire()
            await shared.gone()
        await super().close()

    async def stop(self) -> None:
        """Closes the connections, and stops a connection that is being made."""
        await self._making.stop()
        await self.close()


def _has_ended(line: Connection) -> bool:
    reader, writer = line._reader, line._writer  # noqa: SLF001
    return reader is None or writer is None or reader.at_eof() or writer.transport.is_closing()


class Servers(ServerSet[ServerConnections]):
    """The servers of an asyncio driver."""

    IO = ServerConnections.IO
    KINDS = kinds_of(connection, sentinel, ServerConnections)
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._asking = SingleFlight(self._ask)

    def enter(self) -> None:
        """Drops the connections of another event loop; each call begins with this."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            for lines in self._all_lines():
                lines.forget()
            self._asking.forget()
            for guard in self._guards:
                guard.connection_pool.reset()
        self._loop = loop

    def shared_by(
        self, steps: Sequence[Command | Call[Any]]
    ) -> tuple[ServerConnections, MultiplexedConnection] | None:
        """Returns the shared connection that serves all these steps, if one is open."""
        lines = self.only or self._home_of(steps)
        shared = lines.shared if lines is not None else None
        return (lines, shared) if lines is not None and shared is not None else None

    def _home_of(self, steps: Sequence[Command | Call[Any]]) -> ServerConnections | None:
        """Returns the connections to the cluster node that all these steps go to."""
        if self._map is None:
            return None
        node: Address | None = None
        for step in steps:
            key = key_of(step)
            home = self._map.home(key) if key is not None else None
            if home is None or (node is not None and node != home):
                return None
            node = home
        return self._nodes.get(node) if node is not None else None

    async def slots(self) -> topology.SlotMap:
        """Returns a cluster's slots, read when needed, once for all callers."""
        return self._map or await self._asking.result()

    async def close(self) -> None:
        """Closes all idle connections, and stops the making of others."""
        self.enter()
        await self._asking.stop()
        for lines in self._all_lines():
            await lines.stop()
        await super().close()


# ------------------------------------------------------------------ batch runner
# Performs a batch in an event loop: short parts go over the connection that all tasks share.


class BatchRunner(BatchTurns):
    """The turns of one batch. `is_long`: it must not use the shared connection."""

    SHARES = True
    _calls: AsyncCalls

    def __init__(self, calls: AsyncCalls, batch: Batch, *, is_long: bool = False) -> None:
        super().__init__(calls, batch)
        self._is_long, self._patience_s = is_long, batch.patience_s

    async def after(
        self,
        target: tuple[ServerConnections, MultiplexedConnection],
        replies: list[Any] | Exception,
        began: float,
    ) -> list[Any]:
        """Returns the replies of a batch whose first turn went over one shared connection.

        `replies`: those of that turn, or the error that broke the connection; `began`: when it was
        sent, by clock.mono_s.
        """
        self.until = self._calls.end_of(self._patience_s, began)  # the first turn counts, too
        steps = self._state.steps
        key = None if self._driver.servers.is_one else key_of(steps[0])
        part = NodePart(key, [*range(len(steps))])
        self._state.note_sent(part.indexes)
        return await self.run(self._settle(part, *target, replies))

    async def _abandon(self, line: Any) -> None:
        if isinstance(line, tuple):
            line[1].cancel()
        else:
            await super()._abandon(line)

    async def _send_shared(self, part: NodePart, lines: ServerConnections) -> SharedCall | None:
        steps = self._state.steps
        if self._is_long or part.asking or type(steps) is not list:
            return None
        packed = self._calls.packed([steps[index] for index in part.indexes])
        if packed is None:
            return None
        shared = lines.shared or await lines.share()
        self._state.note_sent(part.indexes)
        return shared, shared.ask(packed, len(part.indexes))

    async def _receive(self, part: NodePart, lines: ServerConnections, line: Any) -> None:
        if not isinstance(line, tuple):
            await super()._receive(part, lines, line)
            return
        shared, future = line
        try:
            replies = await future
        except redis.RedisError as error:
            replies = error
        await self._settle(part, lines, shared, replies)

    async def _settle(
        self,
        part: NodePart,
        lines: ServerConnections,
        shared: MultiplexedConnection,
        replies: list[Any] | Exception,
    ) -> None:
        """Notes the replies of a shared connection, or the error that broke it."""
        state, refusal = self._state, None
        if isinstance(replies, Exception):
            refusal = replies
            state.note_broken(part.indexes, replies)
        else:
            for index, reply in zip(part.indexes, replies, strict=True):
                result = await self._result(reply, state.steps[index], part, lines)
                state.answer(index, result)
                if _is_the_end(reply):
                    refusal = reply
                elif isinstance(result, Exception) and self._driver.spoils(result):
                    refusal = result
        if refusal is None:
            lines.note_reply()
        else:
            await self._driver.drop_shared(lines, shared, refusal)
            state.give_up_if_away(part.indexes, lines)

    async def _result(
        self, reply: Any, step: Command | Call[Any], part: NodePart, lines: ServerConnections
    ) -> Any:
        """Returns what a reply of the shared connection means for its step."""
        if not isinstance(reply, Exception):
            return popped(reply) if isinstance(step, Pop) else reply
        if not isinstance(reply, redis.exceptions.ResponseError):
            return reply
        try:
            return await self._refused(reply, step, part, lines)
        except (redis.RedisError, OSError) as error:  # of the connection of the repeat
            await self._driver.drop(lines, None, error)
            return error


def _is_the_end(reply: Any) -> bool:
    """Returns True if the connection broke, or redis-py would close it: LOADING, NOAUTH."""
    is_error = isinstance(reply, Exception)
    return is_error and not isinstance(reply, redis.exceptions.ResponseError)


# ------------------------------------------------------------------ calls
# Sends steps to Redis from an event loop, with a fast path in front of the shared `Calls`.
#
# Short steps that do not block go over the connection that all tasks share, see `multiplexed`;
# others have a connection of their own.


_MOST_STEPS = 16  # of a batch on the shared connection; a longer batch has its own connection
_MOST_BYTES = 1 << 16  # other tasks wait while these are sent
_SOON_S = 0.1  # a pop whose reply came within this time hardly waited


class AsyncCalls(Calls["AsyncDriver"]):
    """The calls of one run in an event loop."""

    TURNS = BatchRunner

    def __init__(self, driver: AsyncDriver, on_sent: Callable[[], None] = lambda: None) -> None:
        super().__init__(driver, on_sent)
        self._is_busy = False  # the last pop returned tokens without waiting

    async def call(self, step: Command | Call[Any]) -> Any:
        """Performs one step."""
        driver = self.driver
        target = driver.servers.shared_by((step,))
        if target is None or driver.dialect is None or isinstance(step, Pop) or may_block(step):
            return (await self.batch(batch_of(step)))[0]
        packed = pack(step, driver.dialect)
        if len(packed) > _MOST_BYTES:
            return (await BatchRunner(self, batch_of(step), is_long=True).run())[0]
        began = clock.mono_s()
        try:
            reply = await target[1].ask(packed)
        except redis.RedisError as error:
            return (await BatchRunner(self, batch_of(step)).after(target, error, began))[0]
        if isinstance(reply, Exception):
            return (await BatchRunner(self, batch_of(step)).after(target, [reply], began))[0]
        return reply

    def batch(self, batch: Batch) -> Coroutine[Any, Any, list[Any]]:
        """Performs a batch: one round trip, in a cluster one to all its nodes concurrently."""
        steps = batch.steps
        if type(steps) is list and steps:
            last = steps[-1]
            if isinstance(last, Pop) and last.seconds:
                return self._pop(batch, last)
        return self._send_batch(batch)

    async def _pop(self, batch: Batch, pop: Pop) -> list[Any]:
        """Performs a batch that ends in a pop that may wait.

        If the last pop of this run did not wait, the pop is first sent without a timeout, together
        with the other steps. Only if there is no token, it waits on its own connection.
        """
        replies: list[Any] = [None]
        if self._is_busy:
            began = clock.mono_s()
            replies = await self._send_batch(
                _with_steps(batch, [*batch.steps[:-1], _without_wait(pop)])
            )
            if replies[-1] is not None:
                return replies
            left_s = self.end_of(batch.patience_s, began) - clock.mono_s()
            batch = _with_steps(batch, [pop], left_s)
        began = clock.mono_s()
        try:
            replies[-1:] = await self._send_batch(batch)
        except FairlaneError as error:
            if not batch.lenient or len(replies) == 1:
                raise
            replies[-1] = error  # the other steps are answered
        is_soon = clock.mono_s() - began < _SOON_S
        self._is_busy = is_soon and not isinstance(replies[-1], (NoneType, FairlaneError))
        return replies

    async def _send_batch(self, batch: Batch) -> list[Any]:
        """Sends the batch. Fast path: all steps go to one server over the shared connection."""
        steps, packed, began = batch.steps, None, clock.mono_s()
        is_short = type(steps) is list and 0 < len(steps) <= _MOST_STEPS
        target = self.driver.servers.shared_by(steps) if is_short else None
        if target is None or (packed := self.packed(steps)) is None:
            return await super().batch(batch)
        try:
            replies: list[Any] = await target[1].ask(packed, len(steps))
        except redis.RedisError as error:
            return await BatchRunner(self, batch).after(target, error, began)
        for reply in replies:
            if isinstance(reply, Exception):
                return await BatchRunner(self, batch).after(target, replies, began)
        for index, step in enumerate(steps):
            if isinstance(step, Pop):
                replies[index] = popped(replies[index])
        return replies

    def packed(self, steps: Sequence[Command | Call[Any]]) -> bytes | None:
        """Packs steps for the shared connection; None = they need one of their own."""
        dialect = self.driver.dialect
        if dialect is None or type(steps) is not list or not 0 < len(steps) <= _MOST_STEPS:
            return None
        for step in steps:
            if may_block(step):
                return None
        packed = b"".join([pack(step, dialect) for step in steps])
        return packed if len(packed) <= _MOST_BYTES else None


def _with_steps(
    batch: Batch, steps: Sequence[Command | Call[Any]], patience_s: float | None = None
) -> Batch:
    """Returns a batch of these steps with the options of `batch`."""
    patience_s = batch.patience_s if patience_s is None else patience_s
    return Batch(
        steps, lenient=batch.lenient, patience_s=patience_s, away_s=batch.away_s,
        again_s=batch.again_s,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _without_wait(step: Pop) -> Pop:
    """Returns the pop without a timeout."""
    return Pop(step.keys, 0, step.most)


# ------------------------------------------------------------------ driver
# The asyncio driver: runs the operations of many tasks in one event loop.


class LoopRunner(StepRunner):
    """Awaits the handler and the source of chunks."""

    CALLS = AsyncCalls

    async def handle(self, step: Handle) -> Handled:
        """Awaits the handler, and the `meanwhile` in another task."""
        operation = step.meanwhile
        if operation is None:
            return Handled(await self._handle(step.leases))
        handled = asyncio.Event()
        meanwhile = asyncio.create_task(self.driver.start(operation, None, None, handled))
        meanwhile.add_done_callback(lambda _: operation.close())  # cancelled before it began
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

    async def wait_for(self, signal: Signal) -> Any:
        """Lets other tasks run until one of them gives the signal."""
        if not signal.is_given:
            given = asyncio.get_running_loop().create_future()
            signal.wake = partial(_resolve, given)
            await given
        return signal.value

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


def _resolve(given: asyncio.Future[None]) -> None:
    if not given.done():  # its task may have been cancelled
        given.set_result(None)


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
        try:
            self.servers.enter()
        except BaseException:
            operation.close()
            raise
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
        self.servers.forget_slots()
        if is_cut:
            self.servers.note_failed(lines)
        elif error_mapping.is_cut_off(error):
            self.servers.ask_last(lines)
        await lines.close()

    async def close(self) -> None:
        """Closes idle connections, and each shared one after its last reply."""
        await self.servers.close()
