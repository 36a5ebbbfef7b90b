"""Performs the primitives of both drivers by blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from fairlane.common import clock
from fairlane.drivers.wire import encoding, tls_probe

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fairlane.protocol.steps import T


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
            while encoding.take_buffered(line, replies, most):
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
        tls_probe.refuse_plain(options)
