"""Maps errors of Redis to ours; detects the temporary ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import redis

from fairlane.common.text import MAKE_ROOM
from fairlane.drivers.error_hints import is_refusal, other_type, why_refused, why_unanswered
from fairlane.errors import (
    SCRIPT_ERRORS,
    FairlaneError,
    LayoutTooNew,
    RedisFull,
    RedisUnfit,
    RedisUnreachable,
    ScriptsNotLoaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.protocol.steps import Call, Command


# ------------------------------------------------------------------ missing scripts
# Handles a server that lacks a script, and a user without the right to load it.
#
# After a restart or a failover a deployer may be about to load the scripts, so the driver waits as
# for a server that does not answer.


CODE = "NOTLOADED"  # ours; no server returns it


@contextlib.contextmanager
def may_refuse_to_load(line: Any) -> Iterator[None]:
    """Replaces the error of an EVAL that the user may not call: the scripts are not loaded."""
    try:
        yield
    except redis.exceptions.NoPermissionError as error:
        if "'eval'" not in str(error):  # then it ran: a command inside the script was refused
            raise
        raise redis.exceptions.ResponseError(
            f"{CODE} scripts of this release are not loaded at {name_of(line)} and this user may "
            "not load them: a deployer runs `fairlane scripts load`"
        ) from None


def not_loaded(text: str) -> ScriptsNotLoaded:
    """Returns our error for CODE."""
    return ScriptsNotLoaded(text.removeprefix(f"{CODE} "))


def name_of(line: Any) -> str:
    """Returns the address of a connection, for messages."""
    path = getattr(line, "path", None)
    return str(path) if path else f"{line.host}:{line.port}"


# ------------------------------------------------------------------ error mapping
# Maps errors of Redis and of redis-py to our errors, and detects the temporary ones.


# Temporary errors: the driver repeats the same call with the same op id.
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
    CODE,
)
_KNOWN: dict[str, Callable[[str], FairlaneError]] = {
    **SCRIPT_ERRORS,
    CODE: not_loaded,
}
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


def is_forgotten(error: Exception) -> bool:
    """Returns True if the server lacks the script (a restart, a failover, SCRIPT FLUSH)."""
    return isinstance(error, redis.exceptions.NoScriptError) or str(error).startswith("NOSCRIPT")


def is_passing(error: Exception) -> bool:
    """Returns True if the same call may succeed a moment later."""
    if isinstance(
        error, redis.exceptions.AuthenticationError | redis.exceptions.AuthorizationError
    ):
        return False
    if isinstance(
        error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError
    ):
        return not is_refusal(str(error))
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        PASSING
    )


def is_unknown_host(error: Exception) -> bool:
    """Returns True if the host name in the URL has no address, most often a typing error."""
    return isinstance(error, redis.ConnectionError | OSError) and " not known" in str(error)


def full_text(error: Exception) -> str:
    """Returns the server's error with its code in front."""
    return _CODES.get(type(error), "") + str(error)


def is_on_the_move(error: Exception) -> bool:
    """Returns True if a cluster is moving the slot, so a command of several keys is refused."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        ("TRYAGAIN", "ASK ")
    )


def is_cut_off(error: Exception) -> bool:
    """Returns True if the server was demoted or is cut off: its slot map may be wrong."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        ("READONLY", "MASTERDOWN", "CLUSTERDOWN")
    )


def spoils_connections(error: Exception, *, in_cluster: bool) -> bool:
    """Returns True if the server refuses every call: its name may mean another server by now.

    In a cluster, MOVED is about a slot and not about the server.
    """
    if not is_passing(error) or is_on_the_move(error):
        return False
    return not (in_cluster and full_text(error).startswith("MOVED"))


def is_read_only(error: Exception) -> bool:
    """Returns True if a replica or a demoted primary refused a write."""
    return isinstance(error, redis.exceptions.ResponseError) and full_text(error).startswith(
        "READONLY"
    )


def crosses_slots(error: FairlaneError) -> bool:
    """Returns True if a script was refused, before it began, for keys in several slots."""
    return isinstance(error, RedisUnfit) and "hash to the same slot" in str(error)


def translate(
    error: Exception,
    place: str,
    *,
    is_replica: bool = False,
    step: Command | Call[Any] | None = None,
) -> FairlaneError:
    """Returns our error, which says what happened, where, and what to do.

    `is_replica`: the URL names a replica, so no failover has caused a refused write. `step` is the
    refused call, if it is known.
    """
    text = full_text(error)
    code = text.split(" ", 1)[0]
    known = _KNOWN.get(code)
    if known is not None:
        return known(text if known is not LayoutTooNew else f"Redis at {place}:{text[len(code) :]}")
    if isinstance(error, redis.exceptions.AuthenticationError) or is_refusal(text):
        return RedisUnfit(f"Redis at {place} {why_refused(text)}")
    if code == "OOM":
        return RedisFull(
            f"Redis at {place} is full (maxmemory): nothing was written; "
            f"let workers drain it, make room with {MAKE_ROOM}, or raise maxmemory"
        )
    if is_read_only(error):
        kind = RedisUnfit if is_replica else RedisUnreachable
        return kind(
            f"Redis at {place} is a replica and can't be written to: name the primary, "
            "or redis+sentinel:// which finds it"
        )
    if is_passing(error):
        return RedisUnreachable(f"Redis at {place} does not answer: {why_unanswered(text, place)}")
    why = other_type(step) if code == "WRONGTYPE" else f"refused: {text}"
    return RedisUnfit(f"Redis at {place} {why}")
