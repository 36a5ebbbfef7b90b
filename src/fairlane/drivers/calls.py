"""Performs the steps of operations, for both drivers."""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import hiredis
import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA

from fairlane import settings
from fairlane.common import clock
from fairlane.common.clock import connection_delays
from fairlane.drivers import error_mapping
from fairlane.drivers.error_mapping import may_refuse_to_load
from fairlane.drivers.topology import BatchState, NodePart, batch_of
from fairlane.errors import FairlaneError, RedisUnfit
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import (
    Arg,
    Batch,
    Call,
    Command,
    Confirm,
    Confirmed,
    Handle,
    Handled,
    Hurry,
    Message,
    NextChunk,
    Nodes,
    OnNode,
    Pause,
    Pop,
    Popped,
    Signal,
    SingleServer,
    Step,
    Subscribe,
    T,
    TextCall,
    UntilHandled,
    key_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

    from fairlane.drivers.driver import Driver
    from fairlane.drivers.urls import Address
    from fairlane.protocol.steps import Operation

    Sent = tuple[NodePart, Any, Any]  # a part, the connections to its server, the one it is sent on


PIECE_BYTES = 16_384  # about what Redis reads in one call
_BLOCKING = frozenset({b"BLMOVE", b"BLMPOP", b"BRPOP", b"WAIT", b"WAITAOF"})
_ASKING = b"*1\r\n$6\r\nASKING\r\n"


def whole(step: Call[Any], dialect: Dialect, *, asking: bool = False) -> bytes:
    """Returns a script call that sends the script's text. `asking` as in `pieces`."""
    text: bytes = hiredis.pack_command(words(step, dialect, whole=True))  # type: ignore[arg-type]
    return _ASKING + text if asking else text


def pieces(
    steps: Iterable[Command | Call[Any]], dialect: Dialect, *, asking: bool = False
) -> Iterator[bytes]:
    """Yields the bytes of these steps in pieces: the server works on one while we pack the next.

    With `asking`, ASKING goes before each step, so a node serves a slot that is moving to it.
    """
    packed: list[bytes] = []
    size = 0
    for step in steps:
        command = pack(step, dialect, asking=asking)
        packed.append(command)
        size += len(command)
        if size > PIECE_BYTES:
            yield b"".join(packed)
            packed, size = [], 0
    if packed:
        yield b"".join(packed)


def pack(step: Command | Call[Any], dialect: Dialect, *, asking: bool = False) -> bytes:
    """Packs a step, in a third of the time that redis-py's own packing takes."""
    packed: bytes
    if not isinstance(step, Pop):
        packed = hiredis.pack_command(words(step, dialect))  # type: ignore[arg-type]
    elif step.packed is None:  # a pop has a hundred keys, the same again and again
        packed = step.packed = hiredis.pack_command(words(step, dialect))  # type: ignore[arg-type]
    else:
        packed = step.packed
    return _ASKING + packed if asking else packed


def words(
    step: Command | Call[Any], dialect: Dialect, *, whole: bool = False
) -> tuple[bytes | str, ...]:
    """Returns a step as a command: EVALSHA, or with `whole` EVAL and the script's text.

    Numbers become text here, because hiredis asks Python for their text while it packs. If Python
    raises a pending Ctrl-C then, hiredis reads a text that does not exist.
    """
    if isinstance(step, Command):
        return tuple(_ready(step.args))
    name: bytes = b"EVAL" if whole else b"EVALSHA"
    script = step.script
    first = script.source(dialect) if whole else script.shas[dialect]
    args: Iterable[Any] = step.args if type(step) is TextCall else _ready(step.args)
    return (name, first, b"%d" % len(step.keys), *step.keys, *args)


def _ready(args: Iterable[Arg]) -> list[bytes | str]:
    return [arg if isinstance(arg, (bytes, str)) else str(arg) for arg in args]


def may_block(step: Command | Call[Any]) -> bool:
    """Returns True if the server may delay its reply, and so the replies to all later steps."""
    if isinstance(step, Call):
        return False
    if isinstance(step, Pop):
        return step.seconds > 0
    return step.args[0] in _BLOCKING or b"BLOCK" in step.args


def take_buffered(line: Any, replies: list[Any], most: int) -> bool:
    """Adds what a connection has read with the last of `replies`; returns True if more must come.

    Up to `most` replies are taken, and none behind an error. redis-py's own way costs a timer and
    five calls for each reply. The private attributes used here exist since redis-py 5.
    """
    if not replies:
        return most > 0
    reader = line._parser._reader  # noqa: SLF001
    if reader is None:  # the connection was closed meanwhile: the next read reports that
        return len(replies) < most
    while len(replies) < most and (reply := reader.gets()) is not NOT_ENOUGH_DATA:
        replies.append(reply)
        if isinstance(reply, redis.RedisError):
            return False
    return len(replies) < most


def popped(reply: Any) -> Popped | None:
    """Returns the server's reply to a Pop, of one token or of several, as Popped."""
    if reply is None:
        return None
    lane, tokens = reply
    return Popped(lane, tokens if isinstance(tokens, list) else [tokens])


def subscription(channel: bytes, dialect: Dialect) -> tuple[bytes, bytes]:
    """Returns the command that subscribes to a channel: in a cluster at the node of its slot."""
    return (b"SSUBSCRIBE" if dialect is Dialect.CLUSTER else b"SUBSCRIBE"), channel


def message(reply: list[Any]) -> Any:
    """Returns the message. Raises ConnectionError when the slot has left the subscribed node."""
    if reply[0].endswith(b"unsubscribe"):
        raise redis.exceptions.ConnectionError("the channel moved to another node")
    return reply[-1]


def confirmation(replicas: int, *, waits_for_disk: bool) -> list[Command]:
    """Returns the commands that follow a write to confirm it.

    WAITAOF is asked only for the primary's own disk: replicas may have no append-only file, and
    would never answer. Tested on Valkey; Redis 7.2 and newer have the same command.
    """
    commands = [Command(b"WAIT", replicas, settings.CONFIRM_MS)]
    if waits_for_disk:
        commands.append(Command(b"WAITAOF", 1, 0, settings.SYNC_MS))
    return commands


@contextlib.contextmanager
def disk_may_be_missing(answers: list[Any]) -> Iterator[None]:
    """Replaces the error of WAITAOF: a primary without an append-only file has nothing on disk."""
    try:
        yield
    except redis.exceptions.ResponseError:
        if not answers:  # the error was that of WAIT
            raise
        answers.append((0, 0))


def confirmed(reply: Any, answers: list[Any]) -> Confirmed:
    """Reads the replies to `confirmation`: WAIT counts replicas, WAITAOF [own disk, replicas]."""
    is_synced = len(answers) == 1 or int(answers[1][0]) >= 1
    return Confirmed(reply, int(answers[0]), is_synced)


# ------------------------------------------------------------------ primitives
# The I/O that the shared part of the drivers needs; `sync` and `aio` each implement it.
#
# The shared part is written as coroutines. The blocking primitives never wait for an event loop,
# so a coroutine over them runs to its end without a pause.


class Primitives(Protocol):
    """Operations of one kind of I/O on a connection of redis-py."""

    def connection_class(self, kind: Any) -> Any:
        """Returns the class to make connections of, for a pool's class."""

    def connect(self, line: Any) -> Awaitable[None]:
        """Connects and logs in; a no-op on an open connection."""

    def is_open(self, line: Any) -> bool:
        """Returns True if `connect` would be a no-op."""

    def ask(self, line: Any, packed: bytes) -> Awaitable[Any]:
        """Sends packed commands and returns the first reply."""

    def send(self, line: Any, packed: bytes) -> Awaitable[None]:
        """Sends packed commands."""

    def send_command(self, line: Any, *words: Any) -> Awaitable[None]:
        """Packs one command and sends it."""

    def receive(self, line: Any) -> Awaitable[Any]:
        """Returns one reply."""

    def receive_many(self, line: Any, most: int) -> Awaitable[list[Any]]:
        """Returns up to `most` replies; an error, of the server or of the connection, is the last.

        The connection may stay open after an error: the caller drops it.
        """

    def listen(self, line: Any, timeout_s: float) -> Awaitable[Any]:
        """Returns the next published reply; None after `timeout_s`."""

    def disconnect(self, line: Any) -> Awaitable[None]:
        """Closes a connection; it connects again at its next use."""

    def abandon(self, line: Any) -> Awaitable[None]:
        """Closes a connection with unread replies, after Ctrl-C or a cancellation."""

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Waits for `seconds`."""

    def task(self) -> asyncio.Task[Any] | None:
        """Returns the task that runs this, if it may be cancelled."""

    def close_client(self, client: Any) -> Awaitable[None]:
        """Closes a client of redis-py."""

    def refuse_plain(self, options: dict[str, Any]) -> Awaitable[None]:
        """Raises ConnectionError if the server answers a plain PING."""


# ------------------------------------------------------------------ batch turns
# Performs a batch in turns until every step is answered, for both drivers.


class BatchTurns:
    """The turns of one batch. It is not repeated after `until`, in seconds of clock.mono_s."""

    SHARES: ClassVar = False  # True with multiplexed connections: `_send_shared` is tried first

    def __init__(self, calls: Calls[Any], batch: Batch) -> None:
        driver = calls.driver
        self._calls, self._driver, self._io = calls, driver, driver.servers.IO
        self.until = calls.end_of(batch.patience_s)
        self._away_s = driver.cluster_away_s(calls.away_s if batch.away_s is None else batch.away_s)
        self._state = BatchState(batch, driver.place, driver.is_retryable, self._away_s)

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
                self._driver.servers.forget_old_slots()
                return
            shared = await self._send_shared(part, lines) if self.SHARES else None
            if shared is not None:
                sent.append((part, lines, shared))
                return
            line = lines.idle() or await lines.take()
            self._state.note_sent(part.indexes)
            steps = (self._state.steps[index] for index in part.indexes)
            for piece in pieces(steps, self._calls.dialect, asking=part.asking):
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
                        state.answer(index, popped(reply) if is_pop else reply)
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
        self, error: Exception, step: Command | Call[Any], part: NodePart, lines: Any
    ) -> Any:
        """Returns the error of a step; if the server lacks the script, sends its text instead."""
        if error_mapping.is_forgotten(error):
            return await self._send_whole(step, part, lines)
        if self._driver.is_retryable(error) and not error_mapping.is_on_the_move(error):
            self._driver.servers.forget_slots()
        return error

    async def _send_whole(self, step: Command | Call[Any], part: NodePart, lines: Any) -> Any:
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


# ------------------------------------------------------------------ calls
# Sends steps to Redis for both drivers: repeats calls, and sends batches to many nodes.


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
        self.driver.servers.probe_all()

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

    def call(self, step: Command | Call[Any]) -> Coroutine[Any, Any, Any]:
        """Performs one step."""
        if self.driver.servers.only is not None and not isinstance(step, Pop):
            return self.repeat(None, lambda line: self.send_one(line, step), step=step)
        return self._call_any_node(step)

    async def _call_any_node(self, step: Command | Call[Any]) -> Any:
        return (await self.batch(batch_of(step)))[0]

    async def single_server(self, step: SingleServer[Any]) -> Any:
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
        key: bytes | Address | None,
        call: Callable[[Any], Awaitable[Any]],
        *,
        keep: bool = False,
        away_s: float | None = None,
        step: Command | Call[Any] | None = None,
    ) -> Any:
        """Repeats one call while Redis does not answer; the same bytes each time.

        A step that is sent at most once is not repeated: without a reply it returns None. `keep`:
        the caller keeps the connection. `away_s` as in Batch. `step`: for error texts.
        """
        driver, servers, delays = self.driver, self.driver.servers, None
        began = clock.mono_s()
        if driver.dialect is None:
            away_s = driver.cluster_away_s(away_s)
            await driver.find_dialect(self.end_of(away_s, began) - began)
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
                away_s = driver.cluster_away_s(away_s)
                until = self.end_of(away_s, began)
                delays = delays or connection_delays(until - clock.mono_s())
                pause = next(delays, None) if driver.is_retryable(error) else None
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

    async def send_one(self, line: Any, step: Command | Call[Any], *, asking: bool = False) -> Any:
        """Performs a step on this connection. `asking`: its slot is moving there."""
        io, dialect = self._io, self.dialect
        try:
            await io.send(line, pack(step, dialect, asking=asking))
            self.on_sent()
            reply = await io.receive(line)
            if asking:
                reply = await io.receive(line)
        except redis.exceptions.NoScriptError:
            if not isinstance(step, Call):  # a command never returns it
                raise
            with may_refuse_to_load(line):
                reply = await io.ask(line, whole(step, dialect, asking=asking))
                return await io.receive(line) if asking else reply
        return popped(reply) if isinstance(step, Pop) else reply

    async def confirm(self, step: Confirm, line: Any) -> Confirmed:
        """Performs a step, and asks which replicas have its write."""
        reply = await self.send_one(line, step.step)
        commands = confirmation(step.replicas, waits_for_disk=self.driver.waits_for_disk)
        answers: list[Any] = []
        for command in commands:
            with disk_may_be_missing(answers):
                answers.append(await self.send_one(line, command))
        return confirmed(reply, answers)


# ------------------------------------------------------------------ step runner
# Performs the steps of one operation, for both drivers.


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
        if kind is Signal:
            return self.wait_for(step)  # type: ignore[arg-type]
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
                    key_of(inner),
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
    async def wait_for(self, signal: Signal) -> Any:
        """Returns what is given with the signal, when it is given."""

    @abstractmethod
    async def wait_until_handled(self, timeout_s: float) -> bool:
        """Returns True if the handler returned within `timeout_s`."""

    @abstractmethod
    async def next_chunk(self) -> list[bytes] | None:
        """Returns the next chunk of the source; None when it is empty."""

    async def _unsubscribe(self) -> None:
        await self._io.disconnect(self._subscription)

    async def _nodes(self, _: Any) -> list[Address | None]:
        nodes: list[Address | None] = self.calls.driver.servers.nodes
        return nodes

    async def _subscribe(self, channel: bytes) -> None:
        async def listen(line: Any) -> Any:
            words = subscription(channel, self.calls.dialect)
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
            return None if reply is None else message(reply)
        except (redis.RedisError, OSError):
            await self._subscribe(self._channel)
            return None
