"""A batch on its way with asyncio, in as many turns as it takes; `spread` knows what is left.

What is short and does not block goes over the connection that all tasks share, the rest by a line
of its own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import redis

from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.cluster.batch_state import BatchState, NodePart
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.errors import FairlaneError
from fairlane.protocol.steps import Pop

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from redis.asyncio.connection import Connection

    from fairlane.drivers.aio.connections import ServerConnections
    from fairlane.drivers.aio.executor import Calls
    from fairlane.drivers.aio.multiplexed import MultiplexedConnection
    from fairlane.protocol.steps import Batch, Call, Command

    Asked = tuple[MultiplexedConnection, asyncio.Future[Any]]
    Way = tuple[
        NodePart, ServerConnections, Connection | Asked
    ]  # a line of its own, or what was asked on another


class BatchRunner:
    """The turns of one batch, for these calls. `is_long`: it is known not to share a line.

    `began`: when the patience with it began, in seconds of clock.mono_s; None = now.
    """

    def __init__(
        self, calls: Calls, batch: Batch, *, is_long: bool = False, began: float | None = None
    ) -> None:
        self._calls, self._driver, self._is_long = calls, calls.driver, is_long
        self._patience_s = batch.patience_s
        self._left_s = calls.left_s(batch.patience_s, began)
        driver = self._driver
        self._away_s = driver.cluster_away_s(calls.away_s if batch.away_s is None else batch.away_s)
        self._spread = BatchState(batch, driver.place, driver.may_pass, self._away_s)

    async def after(
        self,
        sent: tuple[ServerConnections, MultiplexedConnection],
        heard: list[Any] | Exception,
        began: float,
    ) -> list[Any]:
        """The replies, when all was `sent` over one shared line already: that is the first turn.

        `heard`: the replies, or the error that broke the line; `began`: when it was sent, a moment
        of clock.mono_s.
        """
        self._left_s = self._calls.left_s(self._patience_s, began)  # that try counts, too
        steps = self._spread.steps
        key = None if self._driver.servers.is_one else slot_map.key_of(steps[0])
        part = NodePart(key, [*range(len(steps))])
        self._spread.goes_out(part.indexes)
        return await self.run(self._hear(part, *sent, heard))

    async def run(self, first: Awaitable[None] | None = None) -> list[Any]:
        """The replies. `first`: what is awaited in place of the first turn."""
        driver, spread = self._driver, self._spread
        until, delays = clock.mono_s() + self._left_s, connection_delays(self._left_s)
        turn = first or self._turn()
        while True:
            await turn
            for index, other in spread.other_ways():
                try:
                    spread.replies[index] = await driver.run(
                        other, until=until, away_s=self._away_s
                    )
                except FairlaneError as error:
                    spread.replies[index] = error
            if spread.is_over:
                break
            pause = spread.pause(delays)
            if pause is None or spread.is_enough() or driver.give_up():
                break
            await asyncio.sleep(pause)
            turn = self._turn()
        return spread.result(is_replica=driver.is_replica)

    async def _turn(self) -> None:
        """Sends what is left to where it goes, then reads what comes."""
        servers, spread = self._driver.servers, self._spread
        ways: list[Way] = []
        try:
            try:
                home = None if servers.is_one else (await servers.slots()).home
                for part in spread.parts(home):
                    await self._send(part, ways)
            except (redis.RedisError, OSError) as error:
                spread.broke(list(range(len(spread.steps))), error)
            while ways:
                await self._answers(*ways[0])
                del ways[0]
        finally:  # cancelled in the middle of the replies: lines of its own are out of step
            for _, _, way in ways:
                if isinstance(way, tuple):
                    way[1].cancel()
                else:
                    await way.disconnect(nowait=True)

    async def _send(self, part: NodePart, ways: list[Way]) -> None:
        lines = line = None
        try:
            lines = await self._lines(part)
            if self._spread.skip_if_away(part.indexes, lines):
                self._driver.servers.look_again()
                return
            packed = self._packed(part)
            if packed is not None:
                shared = lines.shared or await lines.share()
                self._spread.goes_out(part.indexes)
                ways.append((part, lines, (shared, shared.ask(packed, len(part.indexes)))))
                return
            line = await lines.take()
            self._spread.goes_out(part.indexes)
            steps = (self._spread.steps[index] for index in part.indexes)
            for piece in encoding.pieces(steps, self._calls.dialect, asking=part.asking):
                await line.send_packed_command([piece])
            ways.append((part, lines, line))
        except (redis.RedisError, OSError) as error:
            await self._driver.drop(lines, line, error)
            self._spread.broke(part.indexes, error)
            self._spread.give_up_if_away(part.indexes, lines)
        except BaseException:
            if line is not None:
                await line.disconnect(nowait=True)
            raise

    def _packed(self, part: NodePart) -> bytes | None:
        """What goes over the shared line; None = it wants one of its own."""
        steps = self._spread.steps
        if self._is_long or part.asking or type(steps) is not list:
            return None
        return self._calls.packed([steps[index] for index in part.indexes])

    async def _answers(
        self, part: NodePart, lines: ServerConnections, way: Connection | Asked
    ) -> None:
        if not isinstance(way, tuple):
            await self._read(part, lines, way)
            return
        shared, asked = way
        try:
            heard = await asked
        except redis.RedisError as error:
            heard = error
        await self._hear(part, lines, shared, heard)

    async def _read(self, part: NodePart, lines: ServerConnections, line: Connection) -> None:
        spread, spoilt = self._spread, None
        try:
            for index in part.indexes:
                if part.asking:
                    await line.read_response()
                reply = await self._reply(line, spread.steps[index], part, lines)
                spread.answer(index, reply)
                if isinstance(reply, Exception) and self._driver.spoils(reply):
                    spoilt = reply
        except (redis.RedisError, OSError) as error:
            await self._driver.drop(lines, line, error)
            spread.broke(part.indexes, error)
            spread.give_up_if_away(part.indexes, lines)
        else:
            await self._leave(lines, line, spoilt)
            if spoilt is not None:
                spread.give_up_if_away(part.indexes, lines)

    async def _hear(
        self,
        part: NodePart,
        lines: ServerConnections,
        shared: MultiplexedConnection,
        heard: list[Any] | Exception,
    ) -> None:
        """The same of what came over the shared line: the replies, or the error that broke it."""
        spread, spoilt = self._spread, None
        if isinstance(heard, Exception):
            spoilt = heard
            spread.broke(part.indexes, heard)
        else:
            for index, reply in zip(part.indexes, heard, strict=True):
                told = await self._understood(reply, spread.steps[index], part, lines)
                spread.answer(index, told)
                if _is_the_end(reply):
                    spoilt = reply
                elif isinstance(told, Exception) and self._driver.spoils(told):
                    spoilt = told
        if spoilt is None:
            lines.note_reply()
        else:
            await self._driver.drop_shared(lines, shared, spoilt)
            spread.give_up_if_away(part.indexes, lines)

    async def _understood(
        self, reply: Any, step: Command | Call, part: NodePart, lines: ServerConnections
    ) -> Any:
        if not isinstance(reply, Exception):
            return encoding.popped(reply) if isinstance(step, Pop) else reply
        if not isinstance(reply, redis.exceptions.ResponseError):
            return reply
        try:
            return await self._refused(reply, step, part, lines)
        except (redis.RedisError, OSError) as error:  # of the line that it was repeated on
            await self._driver.drop(lines, None, error)
            return error

    async def _leave(
        self, lines: ServerConnections, line: Connection, spoilt: Exception | None
    ) -> None:
        """The line is idle again, if the server may answer the next call on it."""
        if spoilt is None:
            lines.give(line)
        else:
            await self._driver.drop(lines, line, spoilt)

    async def _lines(self, part: NodePart) -> ServerConnections:
        servers = self._driver.servers
        if isinstance(part.place, tuple):  # it may have no slot yet, and so not be known
            return servers.lines_at(part.place)
        return await servers.lines_for(part.place)

    async def _reply(
        self, line: Connection, step: Command | Call, part: NodePart, lines: ServerConnections
    ) -> Any:
        """What a step brought, or the error it was refused with."""
        try:
            reply = await line.read_response(disconnect_on_error=False)
        except redis.exceptions.ResponseError as error:
            return await self._refused(error, step, part, lines)
        return encoding.popped(reply) if isinstance(step, Pop) else reply

    async def _refused(
        self, error: Exception, step: Command | Call, part: NodePart, lines: ServerConnections
    ) -> Any:
        """What comes of a step after an error: a forgotten script is sent whole."""
        if error_mapping.is_forgotten(error):
            return await self._elsewhere(step, part, lines)
        if self._driver.may_pass(error) and not error_mapping.is_on_the_move(error):
            self._driver.servers.moved()
        return error

    async def _elsewhere(
        self, step: Command | Call, part: NodePart, lines: ServerConnections
    ) -> Any:
        """A forgotten script, on another of its lines: behind it in the batch a pop may block.

        An error of the script is its reply, as it is in the batch.
        """
        spoilt: Exception | None = None
        line = await lines.take()
        try:
            reply = await self._calls.one(line, step, asking=part.asking)
        except redis.exceptions.ResponseError as error:
            reply = error
            spoilt = error if self._driver.spoils(error) else None
        except BaseException:
            await line.disconnect(nowait=True)
            raise
        await self._leave(lines, line, spoilt)
        return reply


def _is_the_end(reply: Any) -> bool:
    """The line broke, or the server said what redis-py hangs up at: LOADING, NOAUTH."""
    is_error = isinstance(reply, Exception)
    return is_error and not isinstance(reply, redis.exceptions.ResponseError)
