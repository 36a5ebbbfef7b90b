"""The blocking driver: runs an operation's steps one after the other, on its own connections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import redis

from .. import clock, settings
from ..retry import connection_delays
from ..steps import (
    At,
    Batch,
    Call,
    Command,
    Confirm,
    Confirmed,
    Handle,
    HandleBunch,
    Handled,
    Message,
    Nodes,
    Operation,
    Pause,
    Pop,
    Pull,
    Step,
    Subscribe,
    T,
    UntilHandled,
)
from . import routes, wire
from .beside import Beside, Signal
from .sync_servers import Servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis.connection import Connection


class SyncDriver:
    """Runs operations; any thread may call `run` at any time."""

    def __init__(
        self,
        url: str,
        *,
        patience_s: float = settings.PATIENCE_S,
        timeout_s: float = settings.SOCKET_TIMEOUT_S,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self.url = url
        self.servers = Servers(url, timeout_s)
        self.place = self.servers.place
        self.patience_s = patience_s
        self.give_up = give_up  # asked before each repeat: is the answer still wanted?
        self.modern: bool | None = None
        self.waits_for_disk = False
        self.is_replica = False  # as `check` found it
        self.beside = Beside()

    def run(
        self,
        operation: Operation[T],
        source: Iterator[list[bytes]] | None = None,
        handle: Callable[[Handle | HandleBunch], Any] | None = None,
    ) -> T:
        """The operation's result; raises what it raises.

        `source` answers its Pull steps, `handle` its Handle and HandleBunch steps; these are called
        in the caller's thread, and what goes on meanwhile is run in another.
        """
        return self.perform(operation, _Runner(self, source, handle))

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
        finally:
            runner.close()

    def check(self) -> bool:
        """Connects and reads INFO once: is this server fit? Raises RedisUnreachable, RedisUnfit."""
        try:
            lines = self.servers.lines_for(None)
            line = lines.take()
            try:
                line.send_command("INFO")
                info = line.read_response()
                self.modern = wire.check_fitness(info, self.place)
                self.waits_for_disk = wire.has_waitaof(info)
                self.is_replica = wire.names_replica(info, self.url)
            except BaseException:
                line.disconnect()
                raise
            lines.give(line)
        except (redis.RedisError, OSError) as error:
            raise wire.translate(error, self.place) from None
        return self.modern

    def close(self) -> None:
        """Closes idle connections."""
        self.servers.close()


class _Runner:
    """Performs the steps of one run."""

    def __init__(
        self,
        driver: SyncDriver,
        source: Iterator[list[bytes]] | None,
        handle: Callable[[Handle | HandleBunch], Any] | None,
        beside: tuple[Signal | None, Signal | None] = (None, None),
    ) -> None:
        self.driver = driver
        self.source = source
        self.handle = handle
        self.sent, self.handled = beside  # only of an operation that runs beside a handler
        self.ear: Any = None  # the subscription, if the operation made one
        self.channel = b""

    def perform(self, step: Step) -> Any:  # noqa: C901, PLR0911  one case a step
        match step:
            case Command() | Call():
                return self._again(routes.key_of(step), lambda line: self._one(line, step))
            case Batch():
                return self._spread(step)
            case Nodes():
                return self._again(None, self._nodes)
            case At():
                return self._again(step.node, lambda line: self._one(line, step.command))
            case Confirm():
                return self._again(routes.key_of(step.step), partial(self._confirm, step))
            case Pause():
                return clock.sleep(step.seconds)
            case Handle() if self.handle is not None:
                return self.handle(step)
            case HandleBunch() if self.handle is not None:
                return self._handle_bunch(step, self.handle)
            case UntilHandled() if self.handled is not None:
                return self.handled.wait(step.timeout_s)
            case Pull():
                return next(self.source, None) if self.source is not None else None
            case Subscribe():
                return self._subscribe(step.channel)
            case Message():
                return self._message(step.timeout_s)
        raise TypeError(f"no driver performs {type(step).__name__} here")

    def close(self) -> None:
        if self.ear is not None:
            self.ear.disconnect()

    def _handle_bunch(self, step: HandleBunch, handle: Callable[[HandleBunch], Any]) -> Handled:
        operation, driver = step.meanwhile, self.driver
        if operation is None:
            return Handled(handle(step))

        def run(*beside: Signal) -> Any:
            return driver.perform(operation, _Runner(driver, None, None, (beside[0], beside[1])))

        return driver.beside.handle(partial(handle, step), run)

    def _nodes(self, _: Connection) -> list[routes.Address | None]:
        return self.driver.servers.nodes

    def _again(
        self,
        key: bytes | routes.Address | None,
        call: Callable[[Connection], Any],
        *,
        keep: bool = False,
    ) -> Any:
        """One call, repeated while Redis does not answer; the same words each time."""
        driver = self.driver
        if driver.modern is None:
            driver.check()
        delays = connection_delays(driver.patience_s)
        while True:
            line = None
            try:
                lines = driver.servers.lines_for(key)
                line = lines.take()
                reply = call(line)
            except (redis.RedisError, OSError) as error:
                if line is not None:
                    line.disconnect()
                is_final = driver.is_replica and wire.is_read_only(error)
                may_pass = wire.is_passing(error) and not is_final
                pause = next(delays, None) if may_pass else None
                if pause is None or driver.give_up():
                    raise wire.translate(error, driver.place, is_replica=is_final) from None
                driver.servers.moved()
                clock.sleep(pause)
            except BaseException:  # Ctrl-C in the middle of a reply: this line is out of step
                if line is not None:
                    line.disconnect()
                raise
            else:
                if not keep:
                    lines.give(line)
                return reply

    def _one(self, line: Connection, step: Command | Call) -> Any:
        modern = bool(self.driver.modern)
        line.send_packed_command([wire.pack(step, modern=modern)])
        try:
            reply = line.read_response()
        except redis.exceptions.NoScriptError:
            whole = wire.words(step, modern=modern, whole=True)
            line.send_packed_command(line.pack_command(*whole))
            return line.read_response()
        return wire.popped(reply, modern=modern) if isinstance(step, Pop) else reply

    def _confirm(self, step: Confirm, line: Connection) -> Confirmed:
        reply = self._one(line, step.step)
        commands = wire.confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        answers: list[Any] = []
        for command in commands:
            with wire.disk_may_be_missing(answers):
                answers.append(self._one(line, command))
        return wire.confirmed(reply, answers)

    def _spread(self, batch: Batch) -> list[Any]:
        """A batch: one round trip, in a cluster one for each node."""
        servers = self.driver.servers
        if servers.is_one:
            return self._again(None, partial(self._batch, batch=batch))  # type: ignore[no-any-return]
        steps = batch.steps
        replies: list[Any] = [None] * len(steps)
        for key, indexes in routes.group(steps, servers.home):
            part = Batch([steps[i] for i in indexes], lenient=batch.lenient)
            found = self._again(key, partial(self._batch, batch=part))
            for index, reply in zip(indexes, found, strict=True):
                replies[index] = reply
        return replies

    def _batch(self, line: Connection, batch: Batch) -> list[Any]:
        modern = bool(self.driver.modern)
        for piece in wire.pieces(batch.steps, modern=modern):
            line.send_packed_command([piece])
        if self.sent is not None:
            self.sent.give()
        replies: list[Any] = []
        for step in batch.steps:
            try:
                reply = line.read_response(disconnect_on_error=False)
            except redis.exceptions.ResponseError as error:
                reply = self._elsewhere(step) if wire.is_forgotten(error) else error
            replies.append(reply)
        wire.look_at(batch, replies, self.driver.place, modern=modern)
        return replies

    def _elsewhere(self, step: Command | Call) -> Any:
        """A forgotten script, on a line of its own: behind it in the batch a pop may block.

        An error of the script is its reply, as it is in the batch.
        """
        lines = self.driver.servers.lines_for(routes.key_of(step))
        line = lines.take()
        try:
            reply = self._one(line, step)
        except redis.exceptions.ResponseError as error:
            reply = error
        except BaseException:
            line.disconnect()
            raise
        lines.give(line)
        return reply

    def _subscribe(self, channel: bytes) -> None:
        def listen(line: Connection) -> Connection:
            line.send_command("SUBSCRIBE", channel)
            line.read_response()
            return line

        self.close()
        self.channel = channel
        self.ear = self._again(None, listen, keep=True)

    def _message(self, timeout_s: float) -> Any:
        """A message, or None when time is up or the connection broke (then it subscribes anew)."""
        try:
            if not self.ear.can_read(timeout=timeout_s):
                return None
            return self.ear.read_response()[-1]
        except (redis.RedisError, OSError):
            self._subscribe(self.channel)
            return None
