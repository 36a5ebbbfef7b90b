"""The blocking driver: runs an operation's steps one after the other, on its own connections."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import redis

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers.cluster import slot_map
from fairlane.drivers.driver import Driver, FirstContact
from fairlane.drivers.sync.background import BackgroundRunner, OneShotEvent
from fairlane.drivers.sync.connections import ServerConnections, Servers
from fairlane.drivers.sync.executor import Calls
from fairlane.drivers.wire import encoding, error_mapping
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
    Operation,
    Pause,
    SingleServer,
    Step,
    Subscribe,
    T,
    UntilHandled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.connection import Connection

    from fairlane.protocol.scripts import Dialect


class SyncDriver(Driver[Servers]):
    """Runs operations; any thread may call `run` at any time."""

    SERVERS = Servers

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = settings.PATIENCE_S,
        timeout_s: float = settings.SOCKET_TIMEOUT_S,
        give_up: Callable[[], bool] = lambda: False,
        checks_fitness: bool = True,
    ) -> None:
        super().__init__(
            url,
            patience_s=patience_s,
            timeout_s=timeout_s,
            give_up=give_up,
            checks_fitness=checks_fitness,
        )
        self.beside = BackgroundRunner()

    def run(
        self,
        operation: Operation[T],
        source: Iterator[list[bytes]] | None = None,
        handle: Callable[[Any], Any] | None = None,
        *,
        until: float = math.inf,
        away_s: float | None = None,
    ) -> T:
        """The operation's result; raises what it raises.

        `source` answers its NextChunk steps. `handle` is called in the caller's thread with the
        leases of its Handle steps; what goes on meanwhile is run in another thread.
        `until`, `away_s`: see Calls.
        """
        runner = _Runner(self, source, handle)
        runner.calls.until, runner.calls.away_s = until, away_s
        return self.perform(operation, runner)

    def perform(self, operation: Operation[T], runner: _Runner) -> T:
        """The same by a runner that knows what it runs beside."""
        try:
            reply: Any = None
            failure: BaseException | None = None
            while True:
                try:
                    step = operation.send(reply) if failure is None else operation.throw(failure)
                except StopIteration as end:
                    result: T = end.value
                    return result
                failure = reply = None
                try:
                    reply = runner.perform(step)
                except BaseException as error:  # noqa: BLE001  the operation decides what it means
                    failure = error
                    if isinstance(error, KeyboardInterrupt):
                        runner.calls.hurry()
        finally:
            runner.close()

    def check(self, patience_s: float = 0.0) -> Dialect:
        """Connects and reads INFO: is this server fit? Raises RedisUnreachable, RedisUnfit.

        `patience_s` as in FirstContact. Of a cluster all primaries that answer are asked.
        """
        contact = FirstContact(self, patience_s)
        while True:
            try:
                return self.learn(self._infos())
            except (redis.RedisError, OSError) as error:
                pause = contact.pause(error)
                if pause is None:
                    raise error_mapping.translate(error, self.place) from None
                clock.sleep(pause)

    def _infos(self) -> list[bytes]:
        servers = self.servers
        if servers.is_one:
            return [self._info(servers.lines_for(None))]
        found: list[bytes] = []
        failure: Exception | None = None
        for node in (servers.slots()).nodes:
            try:
                found.append(self._info(servers.lines_at(node)))
            except (redis.RedisError, OSError) as error:
                if not error_mapping.is_passing(error):
                    raise
                failure = error
        if failure is not None and not found:
            raise failure
        return found

    def _info(self, lines: ServerConnections) -> bytes:
        line = None
        try:
            line = lines.take()
            line.send_command("INFO")
            info: bytes = line.read_response()
        except (redis.RedisError, OSError) as error:
            self.drop(lines, line, error)
            raise
        except BaseException:
            if line is not None:
                line.disconnect()
            raise
        lines.give(line)
        return info

    def drop(
        self, lines: ServerConnections | None, line: Connection | None, error: Exception
    ) -> None:
        """A line after an error. When it broke, the idle ones to that server are no better.

        Nor are they when the server was demoted or is cut off.
        """
        if line is not None:
            line.disconnect()
        self.servers.moved()
        if lines is None:
            return
        if not isinstance(error, redis.exceptions.ResponseError):
            lines.close()
            self.servers.failed(lines)
            if line is not None:
                self.on_cut()
        elif self.spoils(error):
            lines.close()
            if error_mapping.is_cut_off(error):
                self.servers.distrust(lines)

    def close(self) -> None:
        """Closes idle connections."""
        self.servers.close()


class _Runner:
    """Performs the steps of one run."""

    def __init__(
        self,
        driver: SyncDriver,
        source: Iterator[list[bytes]] | None,
        handle: Callable[[Any], Any] | None,
        beside: tuple[OneShotEvent | None, OneShotEvent | None] = (None, None),
    ) -> None:
        self.driver = driver
        self.source = source
        self.handle = handle
        sent, self.handled = beside  # only of an operation that runs beside a handler
        self.calls = Calls(driver, sent)
        self.ear: Any = None  # the subscription, if the operation made one
        self.channel = b""

    def perform(self, step: Step) -> Any:  # noqa: C901, PLR0911, PLR0912  one case a step
        match step:
            case Command() | Call():
                return self.calls.call(step)
            case Batch():
                return self.calls.spread(step)
            case SingleServer():
                return self.calls.across(step)
            case Nodes():
                return self.calls.again(None, self._nodes)
            case OnNode():
                return self.calls.again(step.node, lambda line: self.calls.one(line, step.command))
            case Confirm():
                confirm, asked = partial(self.calls.confirm, step), step.step
                return self.calls.again(slot_map.key_of(asked), confirm, away_s=asked.away_s)
            case Pause():
                return clock.sleep(step.seconds)
            case Handle() if self.handle is not None:
                return self._handle(step, self.handle)
            case UntilHandled() if self.handled is not None:
                return self.handled.wait(step.timeout_s)
            case Hurry():
                self.calls.hurry()
                return None
            case NextChunk():
                return next(self.source, None) if self.source is not None else None
            case Subscribe():
                return self._subscribe(step.channel)
            case Message():
                return self._message(step.timeout_s)
        raise TypeError(f"no driver performs {type(step).__name__} here")

    def close(self) -> None:
        if self.ear is not None:
            self.ear.disconnect()

    def _handle(self, step: Handle, handle: Callable[[Any], Any]) -> Handled:
        operation, driver = step.meanwhile, self.driver
        if operation is None:
            return Handled(handle(step.leases))

        def run(*beside: OneShotEvent) -> Any:
            return driver.perform(operation, _Runner(driver, None, None, (beside[0], beside[1])))

        return driver.beside.handle(partial(handle, step.leases), run)

    def _nodes(self, _: Connection) -> list[slot_map.Address | None]:
        return self.driver.servers.nodes

    def _subscribe(self, channel: bytes) -> None:
        def listen(line: Connection) -> Connection:
            line.send_command(*encoding.subscription(channel, self.calls.dialect))
            line.read_response()
            return line

        self.close()
        self.channel = channel
        self.ear = self.calls.again(channel, listen, keep=True)

    def _message(self, timeout_s: float) -> Any:
        """A message, or None when time is up or the connection broke (then it subscribes anew)."""
        try:
            if not self.ear.can_read(timeout=timeout_s):
                return None
            return encoding.message(self.ear.read_response())
        except (redis.RedisError, OSError):
            self._subscribe(self.channel)
            return None
