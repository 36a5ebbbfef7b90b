"""Performs the primitives of both drivers in an event loop."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import redis

from fairlane.drivers.wire import encoding, tls_probe

if TYPE_CHECKING:
    from collections.abc import Awaitable


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
            while encoding.take_buffered(line, replies, most):
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
        return tls_probe.refuse_plain_async(options)


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
