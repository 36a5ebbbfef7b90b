"""Encodes steps as bytes and reads their replies, without I/O; how connections are made."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import hiredis
import redis
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlane import settings
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import Arg, Call, Command, Confirmed, Pop, Popped, TextCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


PIECE_BYTES = 16_384  # about what Redis reads in one call
_BLOCKING = frozenset({b"BLMOVE", b"BLMPOP", b"BRPOP", b"WAIT", b"WAITAOF"})
_ASKING = b"*1\r\n$6\r\nASKING\r\n"


def connection_options(timeout_s: float) -> dict[str, Any]:
    """Returns the options of each connection: no hidden retries, replies undecoded.

    redis-py's own retries would run a slow script several times for one call. Our retries repeat a
    call with the same op id, so that a script recognises the repeat.
    """
    return {
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_read_size": 1 << 18,
        "protocol": 2,
        "health_check_interval": 0,
    }


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
    first = script.source(dialect) if whole else script.sha(dialect)
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
