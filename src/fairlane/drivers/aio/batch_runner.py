"""Performs a batch in an event loop: short parts go over the connection that all tasks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis

from fairlane.drivers.batch_turns import BatchTurns
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.batch_state import NodePart
from fairlane.drivers.wire import encoding
from fairlane.protocol.steps import Pop

if TYPE_CHECKING:
    import asyncio

    from fairlane.drivers.aio.calls import AsyncCalls
    from fairlane.drivers.aio.connections import ServerConnections
    from fairlane.drivers.aio.multiplexed import MultiplexedConnection
    from fairlane.protocol.steps import Batch, Call, Command

    SharedCall = tuple[MultiplexedConnection, asyncio.Future[Any]]


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
        key = None if self._driver.servers.is_one else slot_map.key_of(steps[0])
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
        self, reply: Any, step: Command | Call, part: NodePart, lines: ServerConnections
    ) -> Any:
        """Returns what a reply of the shared connection means for its step."""
        if not isinstance(reply, Exception):
            return encoding.popped(reply) if isinstance(step, Pop) else reply
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
