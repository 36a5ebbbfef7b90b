"""What both drivers know about Redis, without I/O: URLs, packing, what an error means, fitness."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlane import settings
from fairlane.drivers.wire import error_hints, missing_scripts
from fairlane.errors import (
    SCRIPT_ERRORS,
    FairlaneError,
    LayoutTooNew,
    RedisFull,
    RedisUnfit,
    RedisUnreachable,
)
from fairlane.protocol.scripts import Dialect, is_in_cluster
from fairlane.protocol.steps import Arg, Call, Command, Confirmed, Pop, Popped, TextCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Not failures of the call but of the moment: the same call with the same op id goes again.
PASSING = (
    "MOVED",
    "ASK ",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "UNBLOCKED",
    "BUSY ",
    "NOREPLICAS",
    missing_scripts.CODE,
)
OLDEST = (7, 0)
WAITAOF_SINCE = (7, 2)
PIECE_BYTES = 16_384  # about what Redis reads at once
_KNOWN: dict[str, Callable[[str], FairlaneError]] = {
    **SCRIPT_ERRORS,
    missing_scripts.CODE: missing_scripts.not_loaded,
}
_BLOCKING = frozenset({b"BRPOP", b"BLMPOP", b"WAIT", b"WAITAOF"})
_ASKING = b"*1\r\n$6\r\nASKING\r\n"


def connection_options(timeout_s: float) -> dict[str, Any]:
    """How each of our connections is made: no hidden retries, replies undecoded.

    redis-py's own retries would run a slow script several times for one call; ours repeat a call
    with the same op id, so that the repeat is recognised.
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


def whole(step: Call, dialect: Dialect, *, asking: bool = False) -> bytes:
    """A script call by the script's text. `asking` as in `pieces`."""
    text: bytes = hiredis.pack_command(words(step, dialect, whole=True))  # type: ignore[arg-type]
    return _ASKING + text if asking else text


def pieces(
    steps: Iterable[Command | Call], dialect: Dialect, *, asking: bool = False
) -> Iterator[bytes]:
    """What is sent for these steps, in pieces: the server works on one while we pack the next.

    With `asking` the word that lets a step in before its slot has moved goes before each.
    """
    packed: list[bytes] = []
    size = 0
    for step in steps:
        one = _ASKING + pack(step, dialect) if asking else pack(step, dialect)
        packed.append(one)
        size += len(one)
        if size > PIECE_BYTES:
            yield b"".join(packed)
            packed, size = [], 0
    if packed:
        yield b"".join(packed)


def pack(step: Command | Call, dialect: Dialect) -> bytes:
    """A step as bytes to send, in a third of the time that redis-py's own way takes."""
    if isinstance(step, Pop) and step.packed is not None:
        return step.packed  # a hundred keys, the same again and again
    packed: bytes = hiredis.pack_command(words(step, dialect))  # type: ignore[arg-type]
    if isinstance(step, Pop):
        step.packed = packed
    return packed


def words(
    step: Command | Call, dialect: Dialect, *, whole: bool = False
) -> tuple[bytes | str, ...]:
    """A step as a command: EVALSHA, or EVAL with the `whole` text for a server that forgot it.

    Numbers become text here: hiredis asks Python for their text while it packs, Python may answer
    with a pending Ctrl-C instead, and hiredis then reads the text that is not there.
    """
    if isinstance(step, Command):
        return tuple(_ready(step.args))
    name: bytes = b"EVAL" if whole else b"EVALSHA"
    script = step.script
    first = script.source(dialect) if whole else script.sha(dialect)
    args = step.args if type(step) is TextCall else _ready(step.args)
    return (name, first, b"%d" % len(step.keys), *step.keys, *args)


def _ready(args: Iterable[Arg]) -> list[bytes | str]:
    return [arg if isinstance(arg, (bytes, str)) else str(arg) for arg in args]


def may_block(step: Command | Call) -> bool:
    """The server may let its answer wait, and with it those to all that is sent behind it."""
    if isinstance(step, Call):
        return False
    if isinstance(step, Pop):
        return step.seconds > 0
    return step.args[0] in _BLOCKING or b"BLOCK" in step.args


def popped(reply: Any) -> Popped | None:
    """Reads the server's reply to a Pop, of one token or of several."""
    if reply is None:
        return None
    lane, found = reply
    return Popped(lane, found if isinstance(found, list) else [found])


def is_forgotten(error: Exception) -> bool:
    """The server does not know the script (a restart, a failover, SCRIPT FLUSH)."""
    return isinstance(error, redis.exceptions.NoScriptError) or str(error).startswith("NOSCRIPT")


def is_passing(error: Exception) -> bool:
    """The same call may succeed a moment later."""
    if isinstance(
        error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError
    ):
        return False
    if isinstance(
        error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError
    ):
        return not error_hints.is_refusal(str(error))
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        PASSING
    )


def is_unknown_host(error: Exception) -> bool:
    """Returns True if the host name in the URL has no address, most often a typing error."""
    return isinstance(error, redis.ConnectionError | OSError) and " not known" in str(error)


_CODES = {  # redis-py strips the code of the errors it has a class for
    redis.exceptions.MovedError: "MOVED ",
    redis.exceptions.AskError: "ASK ",
    redis.exceptions.ReadOnlyError: "READONLY ",
    redis.exceptions.OutOfMemoryError: "OOM ",
    redis.exceptions.NoPermissionError: "NOPERM ",
    redis.exceptions.MasterDownError: "MASTERDOWN ",
    redis.exceptions.TryAgainError: "TRYAGAIN ",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN ",
}


def full_text(error: Exception) -> str:
    """The server's error with its code in front."""
    return _CODES.get(type(error), "") + str(error)


def is_on_the_move(error: Exception) -> bool:
    """A cluster is moving the slot, so that a command of several keys can't be served."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        ("TRYAGAIN", "ASK ")
    )


def is_cut_off(error: Exception) -> bool:
    """Who says so was demoted, or can't reach the others: it does not know who serves what."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        ("READONLY", "MASTERDOWN", "CLUSTERDOWN")
    )


def spoils_connections(error: Exception, *, in_cluster: bool) -> bool:
    """The server can't answer, whatever it is asked: its name may lead to another one by now.

    Where a slot is says nothing of the server, in a cluster.
    """
    if not is_passing(error) or is_on_the_move(error):
        return False
    return not (in_cluster and full_text(error).startswith("MOVED"))


def is_read_only(error: Exception) -> bool:
    """A replica, or a primary that was demoted, refused a write."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        "READONLY"
    )


def translate(
    error: Exception,
    place: str,
    *,
    is_replica: bool = False,
    step: Command | Call | None = None,
) -> FairlaneError:
    """Returns our error, which says what happened, where, and what to do.

    `is_replica`: the URL names a replica, so that a refused write is not a failover's doing. `step`
    is what was refused, if that is known.
    """
    text = full_text(error)
    code = text.split(" ", 1)[0]
    known = _KNOWN.get(code)
    if known is not None:
        return known(text if known is not LayoutTooNew else f"Redis at {place}:{text[len(code) :]}")
    if isinstance(error, redis.exceptions.AuthenticationError) or error_hints.is_refusal(text):
        return RedisUnfit(f"Redis at {place} {error_hints.why_refused(text)}")
    if code == "OOM":
        return RedisFull(
            f"Redis at {place} is full (maxmemory): nothing was written; "
            "drain it or raise maxmemory"
        )
    if is_read_only(error):
        kind = RedisUnfit if is_replica else RedisUnreachable
        return kind(
            f"Redis at {place} is a replica and can't be written to: name the primary, "
            "or redis+sentinel:// which finds it"
        )
    if is_passing(error):
        return RedisUnreachable(
            f"Redis at {place} does not answer: {error_hints.why_unanswered(text, place)}"
        )
    why = error_hints.other_type(step) if code == "WRONGTYPE" else f"refused: {text}"
    return RedisUnfit(f"Redis at {place} {why}")


def _info_fields(info: bytes | str) -> tuple[dict[str, str], tuple[int, ...]]:
    """INFO as a dict, and the server's version."""
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else info
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return fields, tuple(int(part) for part in fields.get("redis_version", "0.0").split(".")[:2])


def check_fitness(info: bytes | str, place: str) -> Dialect:
    """Reads INFO; which texts of the scripts this server wants. Raises RedisUnfit."""
    fields, version = _info_fields(info)
    if version < OLDEST:
        raise RedisUnfit(
            f"Redis at {place} is version {fields.get('redis_version', '?')}, which is too old: "
            "upgrade it to Redis 7.0, Valkey 7.2 or newer"
        )
    if fields.get("arch_bits") == "32":  # its Lua makes text of whole numbers up to 2^31 only
        raise RedisUnfit(f"Redis at {place} is a 32-bit program: Fairlane needs a 64-bit one")
    policy = fields.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise RedisUnfit(
            f"Redis at {place} evicts keys (maxmemory-policy {policy}), which loses work: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return Dialect.of(fields)


def subscription(channel: bytes, dialect: Dialect) -> tuple[bytes, bytes]:
    """How to listen to a channel: in a cluster at the node of its slot."""
    return (b"SSUBSCRIBE" if dialect is Dialect.CLUSTER else b"SUBSCRIBE"), channel


def message(reply: list[Any]) -> Any:
    """What was published. Raises ConnectionError when the slot has left the node listened to."""
    if reply[0].endswith(b"unsubscribe"):
        raise redis.exceptions.ConnectionError("the channel moved to another node")
    return reply[-1]


def names_replica(info: bytes | str, url: str) -> bool:
    """Reads INFO; True when `url` names this very server and it is a replica now."""
    finds_primary = "+" in url.partition(":")[0]
    return not finds_primary and _info_fields(info)[0].get("role") == "slave"


def is_cluster(info: bytes | str) -> bool:
    """Reads INFO; True for a server that refuses a script whose keys are in several slots."""
    return is_in_cluster(_info_fields(info)[0])


def crosses_slots(error: FairlaneError) -> bool:
    """A script was refused as its keys are in several slots, before it began."""
    return isinstance(error, RedisUnfit) and "hash to the same slot" in str(error)


def has_waitaof(info: bytes | str) -> bool:
    """Reads INFO; True for a server that can tell when its append-only file is on disk."""
    fields, version = _info_fields(info)
    return version >= WAITAOF_SINCE and fields.get("aof_enabled") == "1"


def confirmation(replicas: int, *, waits_for_disk: bool) -> list[Command]:
    """What is sent behind a write that is to be confirmed.

    WAITAOF is asked for the primary's own disk alone: replicas may have no append-only file, and
    would never answer. Tested on Valkey, which has it as Redis 7.2 and newer do.
    """
    commands = [Command(b"WAIT", replicas, settings.CONFIRM_MS)]
    if waits_for_disk:
        commands.append(Command(b"WAITAOF", 1, 0, settings.SYNC_MS))
    return commands


@contextlib.contextmanager
def disk_may_be_missing(answers: list[Any]) -> Iterator[None]:
    """A primary without an append-only file refuses WAITAOF: then nothing is on its disk."""
    try:
        yield
    except redis.exceptions.ResponseError:
        if not answers:  # it was WAIT
            raise
        answers.append((0, 0))


def confirmed(reply: Any, answers: list[Any]) -> Confirmed:
    """The replies to `confirmation`, read: WAIT says how many, WAITAOF [own disk, replicas]."""
    is_synced = len(answers) == 1 or int(answers[1][0]) >= 1
    return Confirmed(reply, int(answers[0]), is_synced)
