"""The blocking driver."""

from __future__ import annotations

import contextlib
import os
import threading
from functools import cached_property, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import redis
import redis.connection
import redis.sentinel
from redis.connection import Connection, ConnectionPool, SSLConnection

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers import urls
from fairlane.drivers.calls import StepRunner, take_buffered
from fairlane.drivers.driver import BACK, ConnectionSet, Driver, ServerSet, away
from fairlane.drivers.topology import kinds_of
from fairlane.protocol.steps import Handle, Handled, Operation, Signal, T

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fairlane.drivers.urls import Address
    from fairlane.protocol.lua import Dialect


# ------------------------------------------------------------------ io
# Performs the primitives of both drivers by blocking.


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine over BlockingIO, which needs no event loop, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call waits for an event loop")


class BlockingIO:
    """Coroutines that block their thread and never suspend. See Primitives."""

    def connection_class(self, kind: Any) -> Any:
        """Returns the class as it is."""
        return kind

    async def connect(self, line: Any) -> None:
        """Blocks until the login is answered."""
        line.connect()

    def is_open(self, line: Any) -> bool:
        """Returns True if the connection has a socket."""
        return line._sock is not None  # noqa: SLF001

    async def ask(self, line: Any, packed: bytes) -> Any:
        """Blocks for the reply."""
        line.send_packed_command([packed])
        return line.read_response()

    async def send(self, line: Any, packed: bytes) -> None:
        """Blocks until the socket takes all bytes."""
        line.send_packed_command([packed])

    async def send_command(self, line: Any, *words: Any) -> None:
        """Packs and sends one command."""
        line.send_command(*words)

    async def receive(self, line: Any) -> Any:
        """Blocks for one reply, at most for the socket timeout."""
        return line.read_response()

    async def receive_many(self, line: Any, most: int) -> list[Any]:
        """Blocks for the replies."""
        replies: list[Any] = []
        try:
            while take_buffered(line, replies, most):
                replies.append(line.read_response(disconnect_on_error=False))
        except (redis.RedisError, OSError) as error:
            replies.append(error)
        return replies

    async def listen(self, line: Any, timeout_s: float) -> Any:
        """Blocks for one published reply."""
        return line.read_response() if line.can_read(timeout=timeout_s) else None

    async def disconnect(self, line: Any) -> None:
        """Closes the socket."""
        line.disconnect()

    async def abandon(self, line: Any) -> None:
        """Closes the socket with its unread replies."""
        line.disconnect()

    async def sleep(self, seconds: float) -> None:
        """Blocks the thread."""
        clock.sleep(seconds)

    def task(self) -> None:
        """Returns None: a thread is not cancelled."""

    async def close_client(self, client: Any) -> None:
        """Closes the client's sockets."""
        client.close()

    async def refuse_plain(self, options: dict[str, Any]) -> None:
        """Raises ConnectionError for a server without TLS; blocks."""
        urls.refuse_plain(options)


# ------------------------------------------------------------------ connections
# The connections of the blocking driver.


class ServerConnections(ConnectionSet):
    """Idle connections to one server."""

    IO = BlockingIO()


class Servers(ServerSet[ServerConnections]):
    """The servers of a blocking driver."""

    IO = ServerConnections.IO
    KINDS = kinds_of(redis.connection, redis.sentinel, ServerConnections)


# ------------------------------------------------------------------ driver
# The blocking driver: runs an operation's steps one after the other, on its own connections.


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

    async def wait_for(self, signal: Signal) -> Any:
        """Blocks until another thread gives the signal."""
        given = OneShotEvent()
        signal.wake = given.give
        if not signal.is_given:
            given.wait()
        return signal.value

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

    def meet(self, note: Callable[[str], None]) -> None:
        """Connects as `check` does, and waits as a later call. `note` is called as in `noting`."""
        with self.noting(note, settings.PATIENCE_S):
            self.check(settings.PATIENCE_S)

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


# ------------------------------------------------------------------ any node
# A blocking driver whose OnNode reaches any server of a deployment, also replicas.


class AnyNodeServers(Servers):
    """The servers behind a URL; an address may be that of any server of the deployment."""

    async def lines_for(self, key: bytes | Address | None) -> ServerConnections:
        """Returns the connections to the server of this key, or to the one at this address."""
        return self.lines_at(key) if isinstance(key, tuple) else await super().lines_for(key)

    def _pool(self, target: urls.Target) -> Any:
        self._like = super()._pool(target)
        return self._like

    def lines_at(self, node: Address) -> ServerConnections:
        """Returns the connections to a node; for a single server, with the options of its URL."""
        if self.only is not None and node not in self._nodes:
            options = {**self._like.connection_kwargs, "host": node[0], "port": node[1]}
            for name in ("path", "connection_pool"):  # of a unix socket, of a Sentinel
                options.pop(name, None)
            is_tls = issubclass(self._like.connection_class, SSLConnection)
            kind = SSLConnection if is_tls else Connection
            pool = ConnectionPool(connection_class=kind, **options)
            self._nodes[node] = ServerConnections(pool, f"{node[0]}:{node[1]}")
        return super().lines_at(node)


def driver_of_all(url: str, *, patience_s: float, timeout_s: float) -> SyncDriver:
    """Returns a driver for operations on every single server; it refuses none as unfit."""
    driver = SyncDriver(url, patience_s=patience_s, timeout_s=timeout_s, checks_fitness=False)
    driver.servers = AnyNodeServers(url, timeout_s)
    return driver


# ------------------------------------------------------------------ background
# Runs an operation in a second thread while the first thread runs the handler.


_SENT_S = 0.02  # the longest wait for the first steps: Redis may be unreachable


class OneShotEvent:
    """Set once by one thread and awaited by another; cheaper than threading.Event."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Releases the waiting thread. A repeat is a no-op."""
        if self._lock.locked():
            self._lock.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Returns True if it was given within `timeout_s`; -1 = no limit.

        Only one call may wait successfully.
        """
        return self._lock.acquire(timeout=timeout_s)


class BackgroundRunner:
    """Runs one call at a time in a daemon thread, which starts with the first call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._pid = 0

    def handle(
        self, handle: Callable[[], Any], run: Callable[[OneShotEvent, OneShotEvent], Any]
    ) -> Handled:
        """Calls `handle` in this thread and `run` in the other; returns the results of both.

        `run` gets two events. It gives the first when its first steps are sent: `handle` waits a
        moment for it, so that Redis is busy meanwhile. The second is given when `handle` returns.
        An error of `handle` is raised immediately; an error of `run` is part of the result.
        """
        sent, handled, done = OneShotEvent(), OneShotEvent(), OneShotEvent()
        result: list[Any] = [None, None]

        def call() -> None:
            try:
                result[0] = run(sent, handled)
            except BaseException as error:  # noqa: BLE001  raised in the thread of the caller
                result[1] = error
            sent.give()
            done.give()

        self._start()
        self._calls.put(call)
        sent.wait(_SENT_S)
        try:
            leases = handle()
        finally:
            handled.give()
        done.wait()
        return Handled(leases, result[0], result[1])

    def _start(self) -> None:
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._calls, self._pid = SimpleQueue(), os.getpid()
            threading.Thread(target=_work, args=(self._calls,), name="beside", daemon=True).start()


def _work(calls: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()
