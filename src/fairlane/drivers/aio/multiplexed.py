"""One connection that all tasks of an event loop share: what they ask in one turn goes together.

A connection of redis-py is made and logged in as any other; then its transport is given to us. A
call costs a future and its share of a write and of a read, no task, no timer and no stream.
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

AT_ONCE = 8  # calls in a write: the server works on them while others of the same turn ask
_BUFFER = 1 << 16
_AGAIN_S = 0.05  # a loop that was away itself reads first what has come meanwhile


class MultiplexedConnection(asyncio.BufferedProtocol):
    """Sends what is asked, and gives each reply to who asked for it, in order.

    `timeout_s`: it breaks when something is asked and nothing comes for so long; None = never.
    """

    def __init__(self, line: Any, timeout_s: float | None) -> None:
        """Takes over a connection of redis-py on which nothing is due.

        What redis-py keeps to itself of it, and is used here, has stood since its release 5.
        """
        self.loop = asyncio.get_running_loop()
        self.is_open = True  # may be asked
        self.is_dropped = False  # somebody has seen to what an error on it means ...
        self.is_cut = False  # ... and told that answers were lost with it
        self.timeout_s = timeout_s
        self._line = line
        self._reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=line._parser.parse_error,  # noqa: SLF001
        )
        self._buffer = bytearray(_BUFFER)
        self._room = memoryview(self._buffer)  # TLS writes into slices of it, not into copies
        self._waiting: deque[tuple[asyncio.Future[Any], int]] = deque()
        self._replies: list[Any] = []  # to the first of those that wait
        self._out: list[bytes] = []
        self._is_due = False  # it is sent when this turn ends
        self._is_held = False  # the socket takes no more for now
        self._heard = 0.0  # when the last byte came, or the first was sent
        self._timer: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport = line._writer.transport  # noqa: SLF001
        self._transport.set_protocol(self)

    # ------------------------------------------------------------------ asking

    def ask(self, packed: bytes, count: int = 0) -> asyncio.Future[Any]:
        """The reply to one command, or with a `count` the list of those to so many.

        An error of the server is a reply; the future raises when the line breaks before. Who is
        cancelled disturbs nobody: what comes for him is thrown away.
        """
        future: asyncio.Future[Any] = asyncio.Future(loop=self.loop)
        self._waiting.append((future, count))
        out = self._out
        out.append(packed)
        if not self._is_due:
            self._is_due = True
            self.loop.call_soon(self._end_turn)
        elif len(out) >= AT_ONCE:
            self._send()
        return future

    def _end_turn(self) -> None:
        """After all that ran in a turn of the loop: the rest of what was asked in it."""
        self._is_due = False
        self._send()

    def _send(self) -> None:
        out = self._out
        if not out:
            return
        if self._timer is None and self.timeout_s is not None:
            self._timer = self.loop.call_later(self.timeout_s, self._look)
        if not (self._is_held or self._transport.is_closing()):
            if len(out) == len(self._waiting):  # nothing else is under way
                self._heard = self.loop.time()
            self._out = []
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def pause_writing(self) -> None:
        """The socket is full."""
        self._is_held = True

    def resume_writing(self) -> None:
        """It takes more."""
        self._is_held = False
        self._send()

    # ------------------------------------------------------------------ answers

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where to put what comes."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._heard = self.loop.time()
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]
            self._tell()
        except redis.RedisError as error:
            self._break(partial(type(error), *error.args))

    def _tell(self) -> None:
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
        """It is asked nothing more, and closes when nobody waits for it."""
        self.is_open = False
        if all(future.done() for future, _ in self._waiting):
            self._close()

    async def gone(self) -> None:
        """Returns when it is closed, if it is closing: with TLS that takes a moment."""
        if self._transport.is_closing():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_s):
                    await self._gone.wait()

    def eof_received(self) -> None:
        """The server closed it."""
        self._break(partial(redis.ConnectionError, "Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        """It broke, or is closed as it was to be."""
        self._gone.set()
        if error is None:
            return self.eof_received()
        text = f"Error while reading from {name_of(self._line)} : {error.args}"
        return self._break(partial(redis.ConnectionError, text))

    def _look(self) -> None:
        """Breaks the line when its server is silent."""
        self._timer = None
        if not self._waiting or self.timeout_s is None:
            return
        left_s = self._heard + self.timeout_s - self.loop.time()
        if left_s > 0:
            self._timer = self.loop.call_later(left_s, self._look)
        else:
            self._timer = self.loop.call_later(_AGAIN_S, self._give_up, self._heard)

    def _give_up(self, heard: float) -> None:
        if self._heard > heard or not self._waiting:
            self._look()
            return
        text = f"Timeout reading from {name_of(self._line)}"
        self._break(partial(redis.TimeoutError, text))

    def _break(self, error: Callable[[], Exception]) -> None:
        """Nothing more comes: each who waits is told, with an error of his own.

        The first may have some of his replies: they are his, and the error stands for the others.
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
                future.set_result(replies + [error() for _ in range(count - len(replies))])
            else:
                future.set_exception(error())
                future.exception()  # who is cancelled now does not ask for it
            replies = []

    def _close(self) -> None:
        self._out = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.loop.is_closed():
            self._line._close()  # noqa: SLF001
