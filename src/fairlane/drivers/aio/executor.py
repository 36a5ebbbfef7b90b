"""How the asyncio driver speaks to Redis: a call until it is answered, a batch to many nodes.

What is short and does not block goes over the connection that all tasks share, see `aio_shared`;
the rest has a line of its own.
"""

from __future__ import annotations

import asyncio
import math
from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any

import redis

from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.drivers.aio.batch_runner import BatchRunner
from fairlane.drivers.cluster.batch_state import batch_of
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.drivers.wire.missing_scripts import may_refuse_to_load
from fairlane.errors import FairlaneError, RedisUnfit
from fairlane.protocol.scripts import Dialect
from fairlane.protocol.steps import Batch, Call, Command, Confirm, Confirmed, Pop, SingleServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio.connection import Connection

    from fairlane.drivers.aio.driver import AsyncDriver
    from fairlane.drivers.cluster import slot_map
    from fairlane.drivers.sync.background import OneShotEvent

_MOST_STEPS = 16  # of a batch that shares a line; a long one is sent piece by piece
_MOST_BYTES = 1 << 16  # the others wait while it is sent
_SOON_S = 0.1  # a pop that was answered within it had hardly to wait


class Calls:
    """The calls of one run. `sent` is told once what was to be sent first has gone out.

    `until`: no call is repeated after this moment, in seconds of clock.mono_s; calls that take the
    place of another one have no more time than that. `away_s`: as in Batch, for every batch.
    """

    def __init__(self, driver: AsyncDriver, sent: OneShotEvent | None = None) -> None:
        self.driver = driver
        self.sent = sent
        self.until = math.inf
        self.away_s: float | None = None
        self._is_busy = False  # the last pop brought something at once

    async def call(self, step: Command | Call) -> Any:
        """One step."""
        driver = self.driver
        found = driver.servers.shared_by((step,))
        if (
            found is None
            or driver.dialect is None
            or isinstance(step, Pop)
            or encoding.may_block(step)
        ):
            return (await self.spread(batch_of(step)))[0]
        packed = encoding.pack(step, driver.dialect)
        if len(packed) > _MOST_BYTES:
            return (await BatchRunner(self, batch_of(step), is_long=True).run())[0]
        began = clock.mono_s()
        try:
            reply = await found[1].ask(packed)
        except redis.RedisError as error:
            return (await BatchRunner(self, batch_of(step)).after(found, error, began))[0]
        if isinstance(reply, Exception):
            return (await BatchRunner(self, batch_of(step)).after(found, [reply], began))[0]
        return reply

    async def across(self, step: SingleServer) -> Any:
        """The same, if one server has all its keys."""
        if self.driver.dialect is None:
            await self.driver.check(self.left_s())
        if not self.driver.is_cluster:
            try:
                return await self.call(step.call)
            except RedisUnfit as error:
                if not error_mapping.crosses_slots(error):
                    raise
                self.driver.is_cluster = True  # whatever INFO said, or said then
        return None

    async def again(
        self,
        key: bytes | slot_map.Address | None,
        call: Callable[[Connection], Awaitable[Any]],
        *,
        keep: bool = False,
        away_s: float | None = None,
    ) -> Any:
        """One call, repeated while Redis does not answer; the same words each time.

        `away_s` as in Batch.
        """
        driver, away_s = self.driver, self.driver.cluster_away_s(away_s)
        left_s = self.left_s(away_s)
        delays = connection_delays(left_s)
        if driver.dialect is None:
            await driver.check(left_s)
        while True:
            lines = line = None
            try:
                lines = await driver.servers.lines_for(key)
                line = await lines.take()
                reply = await call(line)
            except (redis.RedisError, OSError) as error:
                await driver.drop(lines, line, error)
                pause = next(delays, None) if driver.may_pass(error) else None
                if pause is None or driver.give_up():
                    raise driver.error_of(error, away_s) from None
                await asyncio.sleep(pause)
            except BaseException:  # cancelled in the middle of a reply: this line is out of step
                if line is not None:
                    await line.disconnect(nowait=True)
                raise
            else:
                if not keep:
                    lines.give(line)
                return reply

    def left_s(self, patience_s: float | None = None, began: float | None = None) -> float:
        """How long a call may be repeated that `began` then, a moment of clock.mono_s, or now."""
        patience_s = self.driver.patience_s if patience_s is None else patience_s
        now = clock.mono_s()
        return min((now if began is None else began) + patience_s, self.until) - now

    async def one(self, line: Connection, step: Command | Call, *, asking: bool = False) -> Any:
        """A step on this line. `asking`: its slot is on the way there."""
        dialect = self.dialect
        await line.send_packed_command([*encoding.pieces([step], dialect, asking=asking)])
        if asking:
            await line.read_response()
        try:
            reply = await line.read_response()
        except redis.exceptions.NoScriptError:
            if not isinstance(step, Call):  # a command never says so
                raise
            await line.send_packed_command([encoding.whole(step, dialect, asking=asking)])
            if asking:
                await line.read_response()
            with may_refuse_to_load(line):
                return await line.read_response()
        return encoding.popped(reply) if isinstance(step, Pop) else reply

    @property
    def dialect(self) -> Dialect:
        """Which texts of the scripts the server wants, as the driver found."""
        return self.driver.dialect or Dialect.SINGLE

    async def confirm(self, step: Confirm, line: Connection) -> Confirmed:
        """A step, and what its replicas say to it."""
        reply = await self.one(line, step.step)
        commands = encoding.confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        answers: list[Any] = []
        for command in commands:
            with encoding.disk_may_be_missing(answers):
                answers.append(await self.one(line, command))
        return encoding.confirmed(reply, answers)

    def spread(self, batch: Batch) -> Awaitable[list[Any]]:
        """A batch: one round trip, in a cluster one for each node, all of them at once."""
        steps = batch.steps
        if type(steps) is list and steps:
            last = steps[-1]
            if isinstance(last, Pop) and last.seconds:
                return self._pop(batch, last)
        return self._spread(batch)

    async def _pop(self, batch: Batch, pop: Pop) -> list[Any]:
        """A batch with a pop that may wait, behind the others.

        A run that finds work whenever it pops does not wait: it looks first whether there is any
        now, together with all the others, and only if not it waits on a line of its own.
        """
        replies: list[Any] = [None]
        if self._is_busy:
            began = clock.mono_s()
            replies = await self._spread(_with_steps(batch, [*batch.steps[:-1], _at_once(pop)]))
            if replies[-1] is not None:
                return replies
            batch = _with_steps(batch, [pop], self.left_s(batch.patience_s, began))
        began = clock.mono_s()
        try:
            replies[-1:] = await self._spread(batch)
        except FairlaneError as error:
            if not batch.lenient or len(replies) == 1:
                raise
            replies[-1] = error  # the others are answered
        is_soon = clock.mono_s() - began < _SOON_S
        self._is_busy = is_soon and not isinstance(replies[-1], (NoneType, FairlaneError))
        return replies

    async def _spread(self, batch: Batch) -> list[Any]:
        """As it is written. What one server answers is most often all that was wanted."""
        steps, packed, began = batch.steps, None, clock.mono_s()
        is_short = type(steps) is list and 0 < len(steps) <= _MOST_STEPS
        found = self.driver.servers.shared_by(steps) if is_short else None
        if found is None or (packed := self.packed(steps)) is None:
            if self.driver.dialect is None:
                await self.driver.check(self.left_s(batch.patience_s))
            return await BatchRunner(self, batch, began=began).run()
        try:
            replies: list[Any] = await found[1].ask(packed, len(steps))
        except redis.RedisError as error:
            return await BatchRunner(self, batch).after(found, error, began)
        for reply in replies:
            if isinstance(reply, Exception):
                return await BatchRunner(self, batch).after(found, replies, began)
        for index, step in enumerate(steps):
            if isinstance(step, Pop):
                replies[index] = encoding.popped(replies[index])
        return replies

    def packed(self, steps: Sequence[Command | Call]) -> bytes | None:
        """What is sent over the shared line for these steps; None = they want one of their own."""
        dialect = self.driver.dialect
        if dialect is None or type(steps) is not list or not 0 < len(steps) <= _MOST_STEPS:
            return None
        for step in steps:
            if encoding.may_block(step):
                return None
        packed = b"".join([encoding.pack(step, dialect) for step in steps])
        return packed if len(packed) <= _MOST_BYTES else None


def _with_steps(
    batch: Batch, steps: Sequence[Command | Call], patience_s: float | None = None
) -> Batch:
    """Returns a batch of these steps that is lenient and patient as `batch` is."""
    patience_s = batch.patience_s if patience_s is None else patience_s
    return Batch(
        steps, lenient=batch.lenient, patience_s=patience_s, away_s=batch.away_s,
        again_s=batch.again_s,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _at_once(step: Pop) -> Pop:
    """What it finds without waiting."""
    return Pop(step.keys, 0, step.most)
