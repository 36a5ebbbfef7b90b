"""Sends steps to Redis for both drivers: repeats calls, and sends batches to many nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import redis

from fairlane import settings
from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.drivers.batch_turns import BatchTurns
from fairlane.drivers.cluster.batch_state import batch_of
from fairlane.drivers.wire import encoding, error_mapping
from fairlane.drivers.wire.missing_scripts import may_refuse_to_load
from fairlane.errors import RedisUnfit
from fairlane.protocol.scripts import Dialect
from fairlane.protocol.steps import Batch, Call, Command, Confirm, Confirmed, Pop, SingleServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fairlane.drivers.cluster import slot_map
    from fairlane.drivers.driver import Driver

D = TypeVar("D", bound="Driver[Any]")


def _may_be_done(error: Exception) -> bool:
    """Returns True unless the server has refused the call."""
    return not isinstance(error, redis.exceptions.ResponseError)


class Calls(Generic[D]):
    """The calls of one run. `on_sent` is called when a call or the first turn of a batch is sent.

    `until`: no call is repeated after this time, in seconds of clock.mono_s. The calls that replace
    another step must end by the same time. `away_s`: as in Batch, for every batch.
    """

    TURNS: ClassVar[type[BatchTurns]] = BatchTurns

    def __init__(self, driver: D, on_sent: Callable[[], None] = lambda: None) -> None:
        self.driver = driver
        self.on_sent = on_sent
        self.until = math.inf
        self.away_s: float | None = None
        self._io = driver.servers.IO

    def hurry(self) -> None:
        """Bounds all later calls after an interrupt, because a person waits for the end of the run.

        The calls are not repeated for long, and a server that hangs gets only a short try.
        """
        self.until = min(self.until, clock.mono_s() + settings.HURRY_S)
        self.driver.servers.doubt()

    def end_of(self, patience_s: float | None, began: float | None = None) -> float:
        """Returns the last time at which a call is repeated, like `began` by clock.mono_s."""
        patience_s = self.driver.patience_s if patience_s is None else patience_s
        return min((clock.mono_s() if began is None else began) + patience_s, self.until)

    def left_s(self, patience_s: float | None = None) -> float:
        """Returns how long a call that begins now may be repeated."""
        return self.end_of(patience_s) - clock.mono_s()

    @property
    def dialect(self) -> Dialect:
        """Returns the dialect of scripts for these servers, as the driver detected it."""
        return self.driver.dialect or Dialect.SINGLE

    def call(self, step: Command | Call) -> Coroutine[Any, Any, Any]:
        """Performs one step."""
        if self.driver.servers.only is not None and not isinstance(step, Pop):
            return self.repeat(None, lambda line: self.send_one(line, step), step=step)
        return self._call_any_node(step)

    async def _call_any_node(self, step: Command | Call) -> Any:
        return (await self.batch(batch_of(step)))[0]

    async def single_server(self, step: SingleServer) -> Any:
        """Performs a call or a batch if one server has all its keys; returns None otherwise."""
        if self.driver.dialect is None:
            await self.driver.find_dialect(self.left_s())
        if not self.driver.is_cluster:
            try:
                if isinstance(step.step, Batch):
                    return await self.batch(step.step)
                return await self.call(step.step)
            except RedisUnfit as error:
                if not error_mapping.crosses_slots(error):
                    raise
                self.driver.is_cluster = True  # whatever INFO reported
        return None

    def batch(self, batch: Batch) -> Coroutine[Any, Any, list[Any]]:
        """Performs a batch in one round trip; in a cluster in one to each node, concurrently."""
        turns = self.TURNS(self, batch)
        return turns.run() if self.driver.dialect is not None else self._first_batch(turns)

    async def _first_batch(self, turns: BatchTurns) -> list[Any]:
        await self.driver.find_dialect(turns.until - clock.mono_s())
        return await turns.run()

    async def repeat(
        self,
        key: bytes | slot_map.Address | None,
        call: Callable[[Any], Awaitable[Any]],
        *,
        keep: bool = False,
        away_s: float | None = None,
        step: Command | Call | None = None,
    ) -> Any:
        """Repeats one call while Redis does not answer; the same bytes each time.

        A step that is sent at most once is not repeated: without a reply it returns None. `keep`:
        the caller keeps the connection. `away_s` as in Batch. `step`: for error texts.
        """
        driver, servers, delays = self.driver, self.driver.servers, None
        away_s = driver.cluster_away_s(away_s)
        until = self.end_of(away_s)
        if driver.dialect is None:
            await driver.find_dialect(until - clock.mono_s())
        while True:
            lines = line = None
            try:
                lines = servers.only if key is None else None
                lines = lines or await servers.lines_for(key)
                line = lines.idle() or await lines.take()
                reply = await call(line)
            except (redis.RedisError, OSError) as error:
                await driver.drop(lines, line, error)
                if step is not None and step.is_once and _may_be_done(error):
                    return None
                delays = delays or connection_delays(until - clock.mono_s())
                pause = next(delays, None) if driver.may_pass(error) else None
                if pause is None or driver.give_up():
                    raise driver.error_of(error, away_s, step) from None
                await self._io.sleep(pause)
            except BaseException:  # interrupted in the middle of a reply: the rest is unread
                if line is not None:
                    await self._io.abandon(line)
                raise
            else:
                if not keep:
                    lines.give(line)
                return reply

    async def send_one(self, line: Any, step: Command | Call, *, asking: bool = False) -> Any:
        """Performs a step on this connection. `asking`: its slot is moving there."""
        io, dialect = self._io, self.dialect
        try:
            await io.send(line, encoding.pack(step, dialect, asking=asking))
            self.on_sent()
            reply = await io.receive(line)
            if asking:
                reply = await io.receive(line)
        except redis.exceptions.NoScriptError:
            if not isinstance(step, Call):  # a command never returns it
                raise
            with may_refuse_to_load(line):
                reply = await io.ask(line, encoding.whole(step, dialect, asking=asking))
                return await io.receive(line) if asking else reply
        return encoding.popped(reply) if isinstance(step, Pop) else reply

    async def confirm(self, step: Confirm, line: Any) -> Confirmed:
        """Performs a step, and asks which replicas have its write."""
        reply = await self.send_one(line, step.step)
        commands = encoding.confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        answers: list[Any] = []
        for command in commands:
            with encoding.disk_may_be_missing(answers):
                answers.append(await self.send_one(line, command))
        return encoding.confirmed(reply, answers)
