"""Performs the steps of one operation, for both drivers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import redis

from fairlane.drivers.calls import Calls
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.wire import encoding
from fairlane.protocol.steps import (
    Batch,
    Call,
    Command,
    Confirm,
    Handle,
    Handled,
    Hurry,
    Message,
    NextChunk,
    Nodes,
    OnNode,
    Pause,
    SingleServer,
    Step,
    Subscribe,
    T,
    TextCall,
    UntilHandled,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlane.drivers.primitives import Primitives
    from fairlane.protocol.steps import Operation


class StepRunner(ABC):
    """The calls of one run, its subscription, and the functions that answer its other steps.

    `source` answers NextChunk, `handle` answers Handle. Only an operation that runs beside a
    handler has `handled`, which is set when the handler has returned, and `on_sent`, as in Calls.
    """

    CALLS: ClassVar[type[Calls[Any]]] = Calls

    def __init__(
        self,
        driver: Any,
        source: Any = None,
        handle: Any = None,
        handled: Any = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self.driver = driver
        self.calls = self.CALLS(driver, on_sent)
        self._source, self._handle, self._handled = source, handle, handled
        self._io: Primitives = driver.servers.IO
        self._subscription: Any = None  # its connection, if the operation subscribed
        self._channel = b""

    async def run(self, operation: Operation[T]) -> T:
        """Performs the steps of an operation and returns its result; raises what it raises."""
        task = self._io.task()
        seen = task.cancelling() if task is not None else 0
        reply: Any = None
        failure: BaseException | None = None
        try:
            while True:
                try:
                    step = operation.send(reply) if failure is None else operation.throw(failure)
                except StopIteration as end:
                    result: T = end.value
                    return result
                failure = reply = None
                try:
                    reply = await self._perform(step)
                except BaseException as error:  # noqa: BLE001  the operation decides what it means
                    failure = error
                    if isinstance(error, KeyboardInterrupt):
                        self.calls.hurry()
                # wait_for of Python 3.11, under redis-py, may swallow a cancellation.
                if task is not None and (now := task.cancelling()) != seen:
                    if now > seen and failure is None:
                        failure = asyncio.CancelledError()
                    seen = now
        finally:
            if self._subscription is not None:
                await self._unsubscribe()

    def _perform(self, step: Step) -> Awaitable[Any]:
        """Performs a step; the kinds that a producer or a worker sends most often go first."""
        kind = type(step)
        if kind is TextCall or kind is Call or kind is Command:
            return self.calls.call(step)  # type: ignore[arg-type]
        if kind is Batch:
            return self.calls.batch(step)  # type: ignore[arg-type]
        if kind is SingleServer:
            return self.calls.single_server(step)  # type: ignore[arg-type]
        if kind is Handle and self._handle is not None:
            return self.handle(step)  # type: ignore[arg-type]
        return self._perform_other(step)

    async def _perform_other(self, step: Step) -> Any:  # noqa: C901, PLR0911  one case a step
        calls = self.calls
        match step:
            case Command() | Call():
                return await calls.call(step)
            case UntilHandled() if self._handled is not None:
                return await self.wait_until_handled(step.timeout_s)
            case NextChunk():
                return await self.next_chunk() if self._source is not None else None
            case Hurry():
                return calls.hurry()
            case Nodes():
                return await calls.repeat(None, self._nodes)
            case OnNode():
                return await calls.repeat(
                    step.node, lambda line: calls.send_one(line, step.command)
                )
            case Confirm():
                inner = step.step
                return await calls.repeat(
                    slot_map.key_of(inner),
                    lambda line: calls.confirm(step, line),
                    away_s=inner.away_s,
                )
            case Pause():
                return await self._io.sleep(step.seconds)
            case Subscribe():
                return await self._subscribe(step.channel)
            case Message():
                return await self._message(step.timeout_s)
        raise TypeError(f"no driver performs {type(step).__name__} here")

    @abstractmethod
    async def handle(self, step: Handle) -> Handled:
        """Calls the handler with leases, while it runs the `meanwhile` of the step."""

    @abstractmethod
    async def wait_until_handled(self, timeout_s: float) -> bool:
        """Returns True if the handler returned within `timeout_s`."""

    @abstractmethod
    async def next_chunk(self) -> list[bytes] | None:
        """Returns the next chunk of the source; None when it is empty."""

    async def _unsubscribe(self) -> None:
        await self._io.disconnect(self._subscription)

    async def _nodes(self, _: Any) -> list[slot_map.Address | None]:
        nodes: list[slot_map.Address | None] = self.calls.driver.servers.nodes
        return nodes

    async def _subscribe(self, channel: bytes) -> None:
        async def listen(line: Any) -> Any:
            words = encoding.subscription(channel, self.calls.dialect)
            await self._io.send_command(line, *words)
            await self._io.receive(line)
            return line

        if self._subscription is not None:
            await self._unsubscribe()
        self._channel = channel
        self._subscription = await self.calls.repeat(channel, listen, keep=True)

    async def _message(self, timeout_s: float) -> Any:
        """Returns a message; None after `timeout_s`. Subscribes anew if the connection broke."""
        try:
            reply = await self._io.listen(self._subscription, timeout_s)
            return None if reply is None else encoding.message(reply)
        except (redis.RedisError, OSError):
            await self._subscribe(self._channel)
            return None
