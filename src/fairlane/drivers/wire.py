"""What both drivers know about Redis, without I/O: URLs, packing, what an error means, fitness."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .. import settings
from ..errors import (
    SCRIPT_ERRORS,
    FairlaneError,
    InvalidArgument,
    RedisFull,
    RedisUnfit,
    RedisUnreachable,
)
from ..steps import Arg, Batch, Call, Command, Confirmed, Pop, Popped, TextCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "redis+sentinel")
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
)
REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "invalid username-password", "AUTH failed")
OLDEST = (6, 2)
WAITAOF_SINCE = (7, 2)
PIECE_BYTES = 16_384  # about what Redis reads at once
_SECRET = re.compile(r"(://[^:@/]*:).*@")  # up to the last @: a password may hold anything
_QUERY_SECRET = re.compile(r"(password=)[^&]*")


def hide_secret(url: str) -> str:
    """The URL without its password, for messages."""
    # The query first: a password there may hold an @, too.
    return _SECRET.sub(r"\1***@", _QUERY_SECRET.sub(r"\1***", url))


def check_url(url: str) -> str:
    """`url` itself when a driver understands it; raises InvalidArgument."""
    if url.partition("://")[0] not in SCHEMES:  # urlsplit refuses some passwords with a [
        raise InvalidArgument(
            f"Redis URL {hide_secret(url)!r} is not valid: it begins with one of "
            + ", ".join(f"{known}://" for known in SCHEMES)
        )
    return url


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


def from_url(pool: Any, url: str, options: dict[str, Any]) -> Any:
    """A pool of the class `pool` for `url`; raises InvalidArgument for a URL it can't read."""
    with contextlib.suppress(ValueError):  # its text may hold a part of the password
        parts = urlsplit(url)
        # Else it would connect to a part of the password, and name it.
        if not (parts.netloc and "@" in parts.path + parts.fragment):
            return pool.from_url(url, **options)
    raise InvalidArgument(
        f"Redis URL {hide_secret(url)!r} is not valid: scheme://host:port/db is expected, "
        "and %2F for a / in a password"
    )


def split_sentinel(url: str) -> tuple[list[tuple[str, int]], str, dict[str, Any]]:
    """`redis+sentinel://[:password@]h:p,h:p/master[/db]` as (sentinels, master, options)."""
    rest = url.split("://", 1)[1]
    credentials, _, place = rest.rpartition("@")
    hosts, _, path = place.partition("/")
    master, _, db = path.partition("/")
    if not master or "?" in path:
        raise InvalidArgument(
            "a redis+sentinel:// URL names its master, and has no options behind it: "
            "redis+sentinel://host:26379/mymaster"
        )
    sentinels = []
    for part in hosts.split(","):
        host, _, port = part.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidArgument(f"sentinel {part!r} is not valid: host:port is expected")
        sentinels.append((host, int(port)))
    options: dict[str, Any] = {"db": int(db) if db.isdigit() else 0}
    user, _, password = credentials.partition(":")
    if password:
        options |= {"password": password, **({"username": user} if user else {})}
    return sentinels, master, options


def pieces(steps: Iterable[Command | Call], *, modern: bool) -> Iterator[bytes]:
    """What is sent for these steps, in pieces: the server works on one while we pack the next."""
    packed: list[bytes] = []
    size = 0
    for step in steps:
        one = pack(step, modern=modern)
        packed.append(one)
        size += len(one)
        if size > PIECE_BYTES:
            yield b"".join(packed)
            packed, size = [], 0
    if packed:
        yield b"".join(packed)


def pack(step: Command | Call, *, modern: bool) -> bytes:
    """A step as bytes to send, in a third of the time that redis-py's own way takes."""
    if isinstance(step, Pop):  # a hundred keys, the same again and again
        known = step.packed.get(modern)
        if known is not None:
            return known
    packed: bytes = hiredis.pack_command(words(step, modern=modern))  # type: ignore[arg-type]
    if isinstance(step, Pop):
        step.packed[modern] = packed
    return packed


def words(step: Command | Call, *, modern: bool, whole: bool = False) -> tuple[bytes | str, ...]:
    """A step as a command: EVALSHA, or EVAL with the `whole` text for a server that forgot it.

    Numbers become text here: hiredis asks Python for their text while it packs, Python may answer
    with a pending Ctrl-C instead, and hiredis then reads the text that is not there.
    """
    if isinstance(step, Pop) and modern:
        return tuple(_ready(_pop_words(step)))
    if isinstance(step, Command):
        return tuple(_ready(step.args))
    name: bytes = b"EVAL" if whole else b"EVALSHA"
    script = step.script
    first = script.source(modern=modern) if whole else script.sha(modern=modern)
    args = step.args if type(step) is TextCall else _ready(step.args)
    return (name, first, b"%d" % len(step.keys), *step.keys, *args)


def _ready(args: Iterable[Arg]) -> list[bytes | str]:
    return [arg if isinstance(arg, (bytes, str)) else str(arg) for arg in args]


def _pop_words(step: Pop) -> tuple[Arg, ...]:
    """A pop by a server that can give several at once."""
    count: tuple[Arg, ...] = (len(step.keys), *step.keys, b"RIGHT", b"COUNT", step.most)
    if not step.seconds:
        return (b"LMPOP", *count)
    return (b"BLMPOP", step.seconds, *count) if step.most > 1 else step.args


def popped(reply: Any, *, modern: bool) -> Popped | None:
    """The server's reply to a Pop, in whichever words it was asked."""
    if reply is None:
        return None
    lane, found = reply
    if isinstance(found, list):
        return Popped(lane, found)
    return Popped(lane, [found], is_cut=not modern)


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
        return not any(text in str(error) for text in REFUSED)
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        PASSING
    )


# How Redis 6.2 passes on the error of a command inside a script.
_INSIDE = re.compile(r"@user_script: ?\d+: -([A-Z]+ .*)")
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
    inside = _INSIDE.search(str(error))
    return inside[1] if inside else _CODES.get(type(error), "") + str(error)


def is_read_only(error: Exception) -> bool:
    """A replica, or a primary that was demoted, refused a write."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        "READONLY"
    )


def translate(error: Exception, place: str, *, is_replica: bool = False) -> FairlaneError:
    """The error of ours that says what happened, where, and what to do.

    `is_replica`: the URL names a replica, so that a refused write is not a failover's doing.
    """
    text = full_text(error)
    code = text.split(" ", 1)[0]
    known = SCRIPT_ERRORS.get(code)
    if known is not None:
        return known(text)
    if isinstance(error, redis.exceptions.AuthenticationError) or any(
        word in text for word in REFUSED
    ):
        return RedisUnfit(
            f"Redis at {place} refused the login or a command: {text.rstrip('.')}; "
            "check user and password in the URL"
        )
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
        hint = "; is it running? --redis or FAIRLANE_REDIS names another" if _is_away(text) else ""
        return RedisUnreachable(f"Redis at {place} does not answer: {text.rstrip('.')}{hint}")
    return RedisUnfit(f"Redis at {place} refused: {text}")


def look_at(batch: Batch, replies: list[Any], place: str, *, modern: bool) -> None:
    """Makes of a batch's replies what its steps are told; raises the first error among them.

    A lenient batch is told the errors. What may pass is raised even so: then all of it goes again.
    """
    for i, (step, reply) in enumerate(zip(batch.steps, replies, strict=True)):
        if isinstance(reply, Exception):
            if not batch.lenient or is_passing(reply):
                raise reply
            replies[i] = translate(reply, place)
        elif isinstance(step, Pop):
            replies[i] = popped(reply, modern=modern)


def _is_away(text: str) -> bool:
    """Nobody listens there."""
    return any(word in text for word in ("refused", "No such file", "not known"))


def _info_fields(info: bytes | str) -> tuple[dict[str, str], tuple[int, ...]]:
    """INFO as a dict, and the server's version."""
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else info
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return fields, tuple(int(part) for part in fields.get("redis_version", "0.0").split(".")[:2])


def check_fitness(info: bytes | str, place: str) -> bool:
    """Reads INFO; True for a server that knows script flags (Redis >= 7). Raises RedisUnfit."""
    fields, version = _info_fields(info)
    if version < OLDEST:
        raise RedisUnfit(
            f"Redis at {place} is version {fields.get('redis_version', '?')}: "
            "Fairlane needs 6.2 or newer"
        )
    if fields.get("arch_bits") == "32":  # its Lua makes text of whole numbers up to 2^31 only
        raise RedisUnfit(f"Redis at {place} is a 32-bit program: Fairlane needs a 64-bit one")
    policy = fields.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise RedisUnfit(
            f"Redis at {place} evicts keys (maxmemory-policy {policy}), which loses work: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return version >= (7, 0)


def names_replica(info: bytes | str, url: str) -> bool:
    """Reads INFO; True when `url` names this very server and it is a replica now."""
    finds_primary = url.startswith(("redis+sentinel:", "redis+cluster:"))
    return not finds_primary and _info_fields(info)[0].get("role") == "slave"


def has_waitaof(info: bytes | str) -> bool:
    """Reads INFO; True for a server that can tell when its append-only file is on disk."""
    fields, version = _info_fields(info)
    return version >= WAITAOF_SINCE and fields.get("aof_enabled") == "1"


def confirmation(replicas: int, *, waits_for_disk: bool) -> list[Command]:
    """What is sent behind a write that is to be confirmed.

    WAITAOF is asked for the primary's own disk alone: replicas may have no append-only file, and
    would never answer. It is tested here by its words only, as no Redis >= 7.2 was at hand.
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
