"""Asks Redis, before any work is taken, whether this user may do all that a worker does.

Each command is sent in a form that changes nothing, because Redis checks the right first. Unlike
ACL DRYRUN, that needs no further right and works on every version. It also finds commands that
rename-command has removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import FairlaneError, RedisUnfit, RedisUnreachable
from fairlane.protocol import acl, keys
from fairlane.protocol.scripts import Dialect, library
from fairlane.protocol.server_info import read_info
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.protocol.steps import Arg, Operation

_KEPT_MS = 10_000  # how long the string that commands are tried on stays if it is not removed
_NO_REQUEST = "?"  # no request has this id
_DRIVERS_OWN = acl.CONNECTION | acl.CALL  # they are used before anything else is
# The arguments behind the key. It holds an empty string: no number, and the wrong type for most.
_BEHIND: dict[str, tuple[Arg, ...]] = {
    **dict.fromkeys(("brpop", "decrby", "getbit", "incrby", "pexpire", "xpending"), (b"x",)),
    **dict.fromkeys(
        ("hdel", "hexists", "hget", "hmget", "lpos", "lpush", "rpush", "sadd", "smismember"),
        (b"x",),
    ),
    **dict.fromkeys(("srem", "zrem"), (b"x",)),
    **dict.fromkeys(("hscan", "xdel", "zmscore", "zscan", "zscore"), (b"0",)),
    **dict.fromkeys(
        ("getrange", "hincrby", "hset", "lrange", "zadd", "zrevrangebyscore"), (b"0", b"0")
    ),
    "zrangebylex": (b"-", b"+"),
    **dict.fromkeys(("xrange", "zcount", "zrange", "zrangebyscore"), (b"0", b"0")),
    **dict.fromkeys(("xack", "xgroup|create", "xgroup|delconsumer"), (b"x", b"0")),
    "set": (b"x", b"PX", b"x"),
    "setbit": (b"0", b"x"),
    "xtrim": ("MAXLEN", b"0"),
    "xadd": (b"0-1", b"x", b"x"),
    "xclaim": (b"x", b"x", b"0", b"0-0"),
}


class Missing(NamedTuple):
    """What Redis refuses to a worker: commands this user may not send, commands, keys."""

    rights: list[str]
    unknown: list[str]
    keys: list[str]


def check_rights(queue: str, worker: str) -> Operation[None]:
    """Returns when this user may send all that a worker sends. Raises RedisError."""
    info = yield from _info()
    wanted, key = sorted(commands(info)), keys.rights(queue, worker)
    touched = keys.request_keys(_NO_REQUEST)
    tries = [harmless(name, key) for name in wanted]
    tries += [Command(b"UNLINK", one) for one in touched]
    # Most commands refuse a string, so that they change nothing.
    yield Batch([Command(b"SET", key, b"", b"PX", _KEPT_MS)], lenient=True)
    replies: list[Any] = yield Batch(tries, lenient=True)
    yield Batch([Command(b"UNLINK", key)], lenient=True)
    # A node that is away proves nothing of rights, and work of the others goes on.
    names = [*wanted, *(one.decode().replace(_NO_REQUEST, "*") for one in touched)]
    found = _missing(dict(zip(names, replies, strict=True)))
    if any(found):
        raise RedisUnfit(_sentence(found))


def _info() -> Operation[dict[str, str]]:
    """Returns the INFO of the first node that answers."""
    error: RedisUnreachable | None = None
    for node in (yield Nodes()):
        try:
            return read_info((yield OnNode(node, Command(b"INFO"))))
        except RedisUnreachable as failure:
            error = failure
    raise error or RedisUnreachable("no node of the cluster answers")


def commands(info: Mapping[str, str]) -> set[str]:
    """Returns the commands that a worker sends to a server of this INFO, as an ACL names them."""
    role, server = acl.ROLES["worker"], acl.version(info["redis_version"])
    found = set(role.commands)
    for name in role.scripts:
        found |= acl.commands_in(getattr(library(), name), Dialect.of(info))
    return {name for name in found - _DRIVERS_OWN if acl.has_command(server, name)}


def harmless(name: str, key: bytes) -> Command:
    """Returns a command in a form that changes nothing, and whose right is checked all the same.

    `key` holds an empty string.
    """
    words = name.upper().encode().split(b"|")
    none = key + b":none"  # holds nothing
    whole: dict[str, tuple[Arg, ...]] = {
        **dict.fromkeys(("del", "exists", "unlink"), (none,)),
        **dict.fromkeys(("publish", "spublish"), (keys.done_channel(_NO_REQUEST), b"")),
        "wait": (key, 0),
        "blmpop": (b"x", 1, key, "LEFT"),
        "copy": (none, none),
        "lmpop": (1, key, "LEFT"),
        "scan": (key,),
        "time": (),
        "waitaof": (key, 0, 0),
        "xreadgroup": ("GROUP", b"x", b"x", b"STREAMS", key, b">"),
    }
    return Command(*words, *whole.get(name, (key, *_BEHIND.get(name, ()))))


def _missing(replies: Mapping[str, Any]) -> Missing:
    found = Missing([], [], [])
    for name, reply in replies.items():
        text = str(reply) if isinstance(reply, FairlaneError) else ""
        if "unknown command" in text or "unknown subcommand" in text:
            found.unknown.append(name.upper())
        elif "NOPERM" in text:
            (found.keys if "{" in name else found.rights).append(name)
    return found


def _sentence(found: Missing) -> str:
    said = []
    if found.unknown:
        said.append(
            f"Redis has no command {', '.join(found.unknown)}, which a worker needs: "
            "take the rename-command out of its configuration"
        )
    refused = [f"send {name.replace('|', ' ').upper()}" for name in found.rights]
    refused += [f"use keys like {name}" for name in found.keys]
    if refused:
        said.append(
            f"this user of Redis may not {', '.join(refused)}, which a worker needs: "
            "give it the rules that `fairlane acl worker` prints"
        )
    return "; ".join(said)
