"""One connection that all tasks of an event loop share: calls of one turn leave in one write.

redis-py connects and logs in as usual; then this protocol takes its transport. A call costs a
future and its share of a write and of a read, but no task, no timer and no stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import hiredis
import redis

from fairlane.drivers.wire.missing_scripts import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS_PER_WRITE = 8  # the server runs these while other tasks of the same turn make calls
_BUFFER = 1 << 16
_AGAIN_S = 0.05  # a loop that was blocked first reads the bytes that have come meanwhile


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
