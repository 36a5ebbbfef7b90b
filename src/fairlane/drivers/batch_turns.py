"""Performs a batch in turns until every step is answered, for both drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import redis

from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.drivers.cluster.batch_state import BatchState, NodePart
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.errors import FairlaneError
from fairlane.protocol.steps import Pop

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fairlane.drivers.calls import Calls
    from fairlane.protocol.steps import Batch, Call, Command

    Sent = tuple[NodePart, Any, Any]  # a part, the connections to its server, the one it is sent on


class BatchTurns:
    """The turns of one batch. It is not repeated after `until`, in seconds of clock.mono_s."""

    SHARES: ClassVar = False  # True with multiplexed connections: `_send_shared` is tried first

    def __init__(self, calls: Calls[Any], batch: Batch) -> None:
        driver = calls.driver
        self._calls, self._driver, self._io = calls, driver, driver.servers.IO
        self.until = calls.end_of(batch.patience_s)
        self._away_s = driver.cluster_away_s(calls.away_s if batch.away_s is None else batch.away_s)
        self._state = BatchState(batch, driver.place, driver.may_pass, self._away_s)

    async def run(self, first: Awaitable[None] | None = None) -> list[Any]:
        """Returns the replies. `first`: an awaitable that replaces the first turn."""
        driver, state, delays = self._driver, self._state, None
        await (first or self._turn())
        while True:
            for index, operation in state.fallbacks():
                try:
                    state.replies[index] = await driver.start(
                        operation, until=self.until, away_s=self._away_s
                    )
                except FairlaneError as error:
                    state.replies[index] = error
            if state.is_over:
                break
            delays = delays or connection_delays(self.until - clock.mono_s())
            pause = state.pause(delays)
            if pause is None or state.is_enough() or driver.give_up():
                break
            await self._io.sleep(pause)
            await self._turn()
        return state.result(is_replica=driver.is_replica)

    async def _turn(self) -> None:
        """Sends unanswered steps to their nodes, then reads the replies."""
        servers, state = self._driver.servers, self._state
        sent: list[Sent] = []
        try:
            try:
                home = None if servers.is_one else (await servers.slots()).home
                for part in state.parts(home):
                    await self._send(part, sent)
            except (redis.RedisError, OSError) as error:
                state.note_broken(list(range(len(state.steps))), error)
            self._calls.on_sent()
            while sent:
                await self._receive(*sent[0])
                del sent[0]
        finally:  # after an interrupt, the other replies are unread
            for _, _, line in sent:
                await self._abandon(line)

    async def _abandon(self, line: Any) -> None:
        await self._io.abandon(line)

    async def _send(self, part: NodePart, sent: list[Sent]) -> None:
        lines = line = None
        try:
            lines = self._driver.servers.only if part.place is None else None
            lines = lines or await self._lines(part)
            if self._state.skip_if_away(part.indexes, lines):
                self._driver.servers.look_again()
                return
            shared = await self._send_shared(part, lines) if self.SHARES else None
            if shared is not None:
                sent.append((part, lines, shared))
                return
            line = lines.idle() or await lines.take()
            self._state.note_sent(part.indexes)
            steps = (self._state.steps[index] for index in part.indexes)
            for piece in encoding.pieces(steps, self._calls.dialect, asking=part.asking):
                await self._io.send(line, piece)
            sent.append((part, lines, line))
        except (redis.RedisError, OSError) as error:
            await self._fail(part, lines, line, error)
        except BaseException:
            if line is not None:
                await self._io.abandon(line)
            raise

    async def _send_shared(self, part: NodePart, lines: Any) -> Any:  # noqa: ARG002
        """Sends a part over a multiplexed connection and returns it; None = there is none."""
        return None

    async def _fail(self, part: NodePart, lines: Any, line: Any, error: Exception) -> None:
        """Drops a broken connection; its steps are sent again if the server is reachable."""
        await self._driver.drop(lines, line, error)
        self._state.note_broken(part.indexes, error)
        self._state.give_up_if_away(part.indexes, lines)

    async def _receive(self, part: NodePart, lines: Any, line: Any) -> None:
        """Reads the replies to a part."""
        state, io, refusal = self._state, self._io, None
        waiting, indexes = len(part.indexes), iter(part.indexes)
        try:
            while waiting:
                if part.asking:
                    await io.receive(line)
                replies = await io.receive_many(line, 1 if part.asking else waiting)
                waiting -= len(replies)
                for reply, index in zip(replies, indexes, strict=False):
                    if isinstance(reply, Exception):
                        refusal = await self._note_error(reply, index, part, lines) or refusal
                    else:
                        is_pop = isinstance(state.steps[index], Pop)
                        state.answer(index, encoding.popped(reply) if is_pop else reply)
        except (redis.RedisError, OSError) as error:
            await self._fail(part, lines, line, error)
        else:
            if refusal is None:
                lines.give(line)
                return
            await self._driver.drop(lines, line, refusal)
            state.give_up_if_away(part.indexes, lines)

    async def _note_error(
        self, error: Exception, index: int, part: NodePart, lines: Any
    ) -> Exception | None:
        """Notes the error of a step, and returns it if its server refuses every call.

        Raises the error of a connection.
        """
        if not isinstance(error, redis.exceptions.ResponseError):
            raise error
        result = await self._refused(error, self._state.steps[index], part, lines)
        self._state.answer(index, result)
        is_refusal = isinstance(result, Exception) and self._driver.spoils(result)
        return result if is_refusal else None

    async def _lines(self, part: NodePart) -> Any:
        servers = self._driver.servers
        if isinstance(part.place, tuple):  # it may have no slot yet, and so not be known
            return servers.lines_at(part.place)
        return await servers.lines_for(part.place)

    async def _refused(
        self, error: Exception, step: Command | Call, part: NodePart, lines: Any
    ) -> Any:
        """Returns the error of a step; if the server lacks the script, sends its text instead."""
        if error_mapping.is_forgotten(error):
            return await self._send_whole(step, part, lines)
        if self._driver.may_pass(error) and not error_mapping.is_on_the_move(error):
            self._driver.servers.moved()
        return error

    async def _send_whole(self, step: Command | Call, part: NodePart, lines: Any) -> Any:
        """Sends a missing script on another connection: a later pop of the batch may block.

        An error of the script is its reply, as it is in the batch.
        """
        line = await lines.take()
        try:
            reply = await self._calls.send_one(line, step, asking=part.asking)
        except redis.exceptions.ResponseError as error:
            if self._driver.spoils(error):
                await self._driver.drop(lines, line, error)
                return error
            reply = error
        except BaseException:
            await self._io.abandon(line)
            raise
        lines.give(line)
        return reply
