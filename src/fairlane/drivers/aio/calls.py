"""Sends steps to Redis from an event loop, with a fast path in front of the shared `Calls`.

Short steps that do not block go over the connection that all tasks share, see `multiplexed`; others
have a connection of their own.
"""

from __future__ import annotations

from functools import lru_cache
from types import NoneType
from typing import TYPE_CHECKING, Any

import redis

from fairlane.common import clock
from fairlane.drivers.aio.batch_runner import BatchRunner
from fairlane.drivers.calls import Calls
from fairlane.drivers.cluster.batch_state import batch_of
from fairlane.drivers.wire import encoding
from fairlane.errors import FairlaneError
from fairlane.protocol.steps import Batch, Call, Command, Pop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from fairlane.drivers.aio.driver import AsyncDriver

_MOST_STEPS = 16  # of a batch on the shared connection; a longer batch has its own connection
_MOST_BYTES = 1 << 16  # other tasks wait while these are sent
_SOON_S = 0.1  # a pop whose reply came within this time hardly waited


class AsyncCalls(Calls["AsyncDriver"]):
    """The calls of one run in an event loop."""

    TURNS = BatchRunner

    def __init__(self, driver: AsyncDriver, on_sent: Callable[[], None] = lambda: None) -> None:
        super().__init__(driver, on_sent)
        self._is_busy = False  # the last pop returned tokens without waiting

    async def call(self, step: Command | Call) -> Any:
        """Performs one step."""
        driver = self.driver
        target = driver.servers.shared_by((step,))
        if (
            target is None
            or driver.dialect is None
            or isinstance(step, Pop)
            or encoding.may_block(step)
        ):
            return (await self.batch(batch_of(step)))[0]
        packed = encoding.pack(step, driver.dialect)
        if len(packed) > _MOST_BYTES:
            return (await BatchRunner(self, batch_of(step), is_long=True).run())[0]
        began = clock.mono_s()
        try:
            reply = await target[1].ask(packed)
        except redis.RedisError as error:
            return (await BatchRunner(self, batch_of(step)).after(target, error, began))[0]
        if isinstance(reply, Exception):
            return (await BatchRunner(self, batch_of(step)).after(target, [reply], began))[0]
        return reply

    def batch(self, batch: Batch) -> Coroutine[Any, Any, list[Any]]:
        """Performs a batch: one round trip, in a cluster one to all its nodes concurrently."""
        steps = batch.steps
        if type(steps) is list and steps:
            last = steps[-1]
            if isinstance(last, Pop) and last.seconds:
                return self._pop(batch, last)
        return self._send_batch(batch)

    async def _pop(self, batch: Batch, pop: Pop) -> list[Any]:
        """Performs a batch that ends in a pop that may wait.

        If the last pop of this run did not wait, the pop is first sent without a timeout, together
        with the other steps. Only if there is no token, it waits on its own connection.
        """
        replies: list[Any] = [None]
        if self._is_busy:
            began = clock.mono_s()
            replies = await self._send_batch(
                _with_steps(batch, [*batch.steps[:-1], _without_wait(pop)])
            )
            if replies[-1] is not None:
                return replies
            left_s = self.end_of(batch.patience_s, began) - clock.mono_s()
            batch = _with_steps(batch, [pop], left_s)
        began = clock.mono_s()
        try:
            replies[-1:] = await self._send_batch(batch)
        except FairlaneError as error:
            if not batch.lenient or len(replies) == 1:
                raise
            replies[-1] = error  # the other steps are answered
        is_soon = clock.mono_s() - began < _SOON_S
        self._is_busy = is_soon and not isinstance(replies[-1], (NoneType, FairlaneError))
        return replies

    async def _send_batch(self, batch: Batch) -> list[Any]:
        """Sends the batch. Fast path: all steps go to one server over the shared connection."""
        steps, packed, began = batch.steps, None, clock.mono_s()
        is_short = type(steps) is list and 0 < len(steps) <= _MOST_STEPS
        target = self.driver.servers.shared_by(steps) if is_short else None
        if target is None or (packed := self.packed(steps)) is None:
            return await super().batch(batch)
        try:
            replies: list[Any] = await target[1].ask(packed, len(steps))
        except redis.RedisError as error:
            return await BatchRunner(self, batch).after(target, error, began)
        for reply in replies:
            if isinstance(reply, Exception):
                return await BatchRunner(self, batch).after(target, replies, began)
        for index, step in enumerate(steps):
            if isinstance(step, Pop):
                replies[index] = encoding.popped(replies[index])
        return replies

    def packed(self, steps: Sequence[Command | Call]) -> bytes | None:
        """Packs steps for the shared connection; None = they need one of their own."""
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
    """Returns a batch of these steps with the options of `batch`."""
    patience_s = batch.patience_s if patience_s is None else patience_s
    return Batch(
        steps, lenient=batch.lenient, patience_s=patience_s, away_s=batch.away_s,
        again_s=batch.again_s,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _without_wait(step: Pop) -> Pop:
    """Returns the pop without a timeout."""
    return Pop(step.keys, 0, step.most)
