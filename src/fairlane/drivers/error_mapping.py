"""Maps errors of Redis to ours; detects the temporary ones."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import redis

from fairlane.common.text import MAKE_ROOM
from fairlane.errors import (
    SCRIPT_ERRORS,
    FairlaneError,
    LayoutTooNew,
    RedisFull,
    RedisUnfit,
    RedisUnreachable,
    ScriptsNotLoaded,
)
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import Call, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fairlane.protocol.steps import Command


OLDEST = (7, 0)
WAITAOF_SINCE = (7, 2)


def check_fitness(info: Mapping[str, str], place: str) -> Dialect:
    """Returns the dialect of scripts for the server of this INFO. Raises RedisUnfit."""
    if _version(info) < OLDEST:
        raise RedisUnfit(
            f"Redis at {place} is version {info.get('redis_version', '?')}, which is too old: "
            "upgrade it to Redis 7.0, Valkey 7.2 or newer"
        )
    if info.get("arch_bits") == "32":  # its Lua makes text of whole numbers up to 2^31 only
        raise RedisUnfit(f"Redis at {place} is a 32-bit program: Fairlane needs a 64-bit one")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise RedisUnfit(
            f"Redis at {place} evicts keys (maxmemory-policy {policy}), which loses work: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return Dialect.of(info)


def has_waitaof(info: Mapping[str, str]) -> bool:
    """Returns True if the server of this INFO can confirm that its append-only file is on disk."""
    return _version(info) >= WAITAOF_SINCE and info.get("aof_enabled") == "1"


def names_replica(info: Mapping[str, str], url: str) -> bool:
    """Returns True if `url` names the server of this INFO and it is a replica now."""
    finds_primary = "+" in url.partition(":")[0]
    return not finds_primary and info.get("role") == "slave"


def _version(info: Mapping[str, str]) -> tuple[int, ...]:
    """Returns the version of Redis whose commands the server has; Valkey names one, too."""
    return tuple(int(part) for part in info.get("redis_version", "0.0").split(".")[:2])


# ------------------------------------------------------------------ hints
# Explains errors of Redis in words, without I/O: refusals, hints.


# The text of our own error for a server that answers a plain PING although the URL requires TLS.
NO_TLS = "answers without TLS"
# A right is missing: the texts of Redis 7.0 for a command inside a script, of Redis 7.2 and Valkey.
_RIGHTS = ("NOPERM", "The user executing the script", "ACL failure in script")
_LOGIN = ("NOAUTH", "WRONGPASS", "invalid username-password", "AUTH failed", "AuthenticationError")
_FINAL = (*_RIGHTS, *_LOGIN, NO_TLS)
# The texts of OpenSSL about certificates, keys and a server without TLS.
_INSECURE = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|record layer failure|RECORD_LAYER_FAILURE"
    r"|_ALERT_|PEM lib|\[X509|doesn't match|KEY_VALUES_MISMATCH"
)
# redis-py's error for a master that no Sentinel has; its text ends with objects of the clients.
_NO_MASTER = re.compile(r"(No master found for '[^']*') : .*", re.DOTALL)
# The sockets of embedded servers (embedded/home.py), but not a system's own /run/redis.sock.
_EMBEDDED = re.compile(
    r"^unix://(?!(?:/var)?/run/redis\.sock).*(?:/run|/fairlane-\d+-[0-9a-f]{12})/redis\.sock(?:$|\?)"
)
_CUT = ("closed by server", "reset by peer", "Connection lost")  # a connection that was made
_CONNECTING = re.compile(r"Error -?\d+ connecting to (\S+)\. (?=\D)")  # redis-py's words
_TAG = re.compile(r"\{[^}]+\}")


def is_refusal(text: str) -> bool:
    """Returns True if no patience helps: the login, a right, the certificate or TLS is wrong."""
    return any(word in text for word in _FINAL) or _INSECURE.search(text) is not None


def why_refused(text: str) -> str:
    """Returns the reason of a refusal and its remedy, to follow `Redis at ...`."""
    if NO_TLS in text:
        return f"{NO_TLS}: begin the URL with redis instead of rediss"
    if _NO_MASTER.match(text) and _INSECURE.search(text):
        return (
            "is not known, because a Sentinel offers no secure connection: "
            "ssl_ca_certs=FILE in the URL names who signed its certificate"
        )
    if _NO_MASTER.match(text):
        return (
            "is not known, because a Sentinel refused the login: check sentinel_username and "
            "sentinel_password in the URL"
        )
    if _INSECURE.search(text):
        return (
            f"offers no secure connection: {text.rstrip('.')}; "
            "ssl_ca_certs=FILE in the URL names who signed its certificate"
        )
    if any(word in text for word in _RIGHTS):
        return f"refused a command: {text.rstrip('.')}; `fairlane acl` lists what a role needs"
    return f"refused the login or a command: {text.rstrip('.')}; check user and password in the URL"


def why_unanswered(text: str, place: str) -> str:
    """Returns why a server does not answer, and what may be wrong."""
    if found := _NO_MASTER.match(text):
        return f"{found[1]}, and a Sentinel did not answer; is it running?"
    made = _CONNECTING.match(text)
    why = text[made.end() :] if made and made[1] in place else text  # the place comes before it
    return why.rstrip(".") + _hint(text, place)


def _hint(text: str, place: str) -> str:
    """Returns a likely cause, to follow the error's own words; empty if none is likely."""
    is_embedded = _EMBEDDED.search(place) is not None
    is_cut = any(word in text for word in _CUT)
    is_off = any(word in text for word in ("refused", "No such file", "not known"))
    if is_embedded and (is_off or is_cut or "Broken pipe" in text):
        return (
            "; is it your embedded server? `fairlane server start` starts it; --redis or "
            "FAIRLANE_REDIS names another"
        )
    if is_off:
        return "; is it running, and is the URL right?"
    if place.startswith("rediss"):
        if "EOF occurred" in text or "reset by peer" in text:
            return "; does it want a certificate? ssl_certfile and ssl_keyfile in the URL name one"
        return "; does it speak TLS? it should, for a rediss URL" if "Timeout" in text else ""
    if is_cut and not place.startswith("unix"):
        return "; does it speak TLS? then the URL begins with rediss"
    return ""


def other_type(step: Command | Call[Any] | None) -> str:
    """Returns the reason for WRONGTYPE. A script does not report which of its keys caused it."""
    tags = " or ".join(_tags(step)) or "this call"
    return (
        f"holds data of another type than Fairlane's under a key of {tags} (WRONGTYPE), perhaps "
        "another program's: choose another id or queue name, or delete that key"
    )


def _tags(step: Command | Call[Any] | None) -> list[str]:
    """Returns the hash tags of a step's keys: a request, a queue, or both."""
    names = step.keys if isinstance(step, Call) else [step and key_of(step)]
    texts = [name.decode("utf-8", "replace") for name in names if name]
    return list(dict.fromkeys(found[0] for text in texts if (found := _TAG.search(text))))


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
        sentence = text.removeprefix("REFUSED ")
        return known(
            sentence if known is not LayoutTooNew else f"Redis at {place}:{text[len(code) :]}"
        )
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
