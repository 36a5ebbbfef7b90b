"""The I/O that the shared part of the drivers needs; `sync` and `aio` each implement it.

The shared part is written as coroutines. The blocking primitives never wait for an event loop, so a
coroutine over them runs to its end without a pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable


class Primitives(Protocol):
    """Operations of one kind of I/O on a connection of redis-py."""

    def connection_class(self, kind: Any) -> Any:
        """Returns the class to make connections of, for a pool's class."""

    def connect(self, line: Any) -> Awaitable[None]:
        """Connects and logs in; a no-op on an open connection."""

    def is_open(self, line: Any) -> bool:
        """Returns True if `connect` would be a no-op."""

    def ask(self, line: Any, packed: bytes) -> Awaitable[Any]:
        """Sends packed commands and returns the first reply."""

    def send(self, line: Any, packed: bytes) -> Awaitable[None]:
        """Sends packed commands."""

    def send_command(self, line: Any, *words: Any) -> Awaitable[None]:
        """Packs one command and sends it."""

    def receive(self, line: Any) -> Awaitable[Any]:
        """Returns one reply."""

    def receive_many(self, line: Any, most: int) -> Awaitable[list[Any]]:
        """Returns up to `most` replies; an error, of the server or of the connection, is the last.

        The connection may stay open after an error: the caller drops it.
        """

    def listen(self, line: Any, timeout_s: float) -> Awaitable[Any]:
        """Returns the next published reply; None after `timeout_s`."""

    def disconnect(self, line: Any) -> Awaitable[None]:
        """Closes a connection; it connects again at its next use."""

    def abandon(self, line: Any) -> Awaitable[None]:
        """Closes a connection with unread replies, after Ctrl-C or a cancellation."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Waits for `seconds`."""

    def task(self) -> asyncio.Task[Any] | None:
        """Returns the task that runs this, if it may be cancelled."""

    def close_client(self, client: Any) -> Awaitable[None]:
        """Closes a client of redis-py."""

    def refuse_plain(self, options: dict[str, Any]) -> Awaitable[None]:
        """Raises ConnectionError if the server answers a plain PING."""
