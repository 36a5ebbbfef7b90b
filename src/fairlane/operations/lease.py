"""Acquires leases of slices, extends them, settles them and acquires the next ones."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fairlane import settings
from fairlane.common.text import split_names
from fairlane.errors import FairlaneError, RedisUnfit, RedisUnreachable
from fairlane.model import Slice, Token, Verdict
from fairlane.operations.rates import Allowance, acquire_rated
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import Dialect, library, signed
from fairlane.protocol.server_info import read_info
from fairlane.protocol.steps import Batch, Call, Command, Nodes, OnNode, SingleServer, TextCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.protocol.scripts import AcquireReply, CompleteReply, ExtendReply, ReapReply
    from fairlane.protocol.steps import Arg

    Part = tuple[list[bytes], list[Arg], list[Verdict]]  # ids, (head, body) pairs flat, verdicts


# ------------------------------------------------------------------ leases
# A worker's calls: pop a token -> acquire -> handle -> complete -> dispatch the returned tokens.
#
# If one server has all keys: handle -> exchange (below) -> handle.


# In the order of their signatures: a unit makes tens of thousands of these calls a second.
_ACQUIRE = (
    *("now", "k", "g", "op", "worker", "started", "count", "shared"),
    *("allowance", "wait", "token"),
)
_COMPLETE = ("now", "k", "fence", "op", "keep", "done")


class Ops:
    """Draws ops: the same 88 random bits in one process, and a count."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Draws other bits than the parent's, in a process that was forked."""
        self._prefix = secrets.token_hex(11).encode()
        self._numbers = count()

    def draw(self) -> bytes:
        """Returns an op that was never drawn before."""
        return b"%b%010x" % (self._prefix, next(self._numbers))


_ops = Ops()


def new_op() -> bytes:
    """Returns a name for one acquire: 32 hex digits, different each time."""
    return _ops.draw()


async def acquire(
    token: Token, worker: str, started: str, count: int, *, op: bytes | None = None
) -> tuple[AcquireReply, Slice | None]:
    """Shows the token; returns the reply, which is to be followed up, and the slice of an `ok`.

    Idempotent by `op`: None makes a new one. Raises NodeAway if the request's node of a cluster has
    not answered for AWAY_S.
    """
    op = op or new_op()
    call = acquire_call(token, worker, started, count, op)
    call.away_s = settings.AWAY_S
    reply = await call
    if reply.is_rated:
        again = partial(acquire_call, token, worker, started, count, op)
        reply = await acquire_rated(
            token.request_id, reply, lambda allowance: again(allowance=allowance)
        )
    return reply, slice_of(token, op, reply)


def acquire_call(
    token: Token, worker: str, started: str, count: int, op: bytes, *, shared: bool = False,
    allowance: Allowance | None = None,
) -> Call[AcquireReply]:  # fmt: skip
    """Returns the call that acquires; `shared`: with others by one unit, where no death is charged.

    The death of a retry must be charged: the reply to a shared call is then "alone", and the token
    stays valid. A request with rates needs an `allowance`: without one the reply is "rated", and
    the token stays valid, too.
    """
    script = signed(library(), "acquire", _ACQUIRE)
    is_shared = b"1" if shared else b""
    allowed, wait = (b"", b"") if allowance is None else (b"%d" % number for number in allowance)
    return TextCall(
        script, keys.request_keys(token.request_id),
        (b"", token.k, token.g, op, worker, started, b"%d" % count, is_shared, allowed, wait,
         token.text if token.keys and not token.is_apart else b""),
        scripts.AcquireReply.of,
    )  # fmt: skip


def slice_of(token: Token, op: bytes, reply: AcquireReply) -> Slice | None:
    """Returns the slice that an acquire with this op was granted; None if it was not."""
    if not reply.is_ok:
        return None
    _, fence, attempt, policy, entries, _ = reply
    now, _, lease_ms, attempts, backoff_min, backoff_max, priority, *others = policy
    limit_ms, durable, more, trace, *redact = others
    return Slice(
        token.request_id, token.k, fence, op, attempt, attempts, (backoff_min, backoff_max),
        lease_ms, priority, now, entries, limit_ms, durable, more, token.turn, trace.decode(),
        split_names(redact[0].decode()) if redact else (),
    )  # fmt: skip


class LeaseProof(Protocol):
    """What proves that the caller holds a lease: a Slice, or a receipt."""

    @property
    def request_id(self) -> str:
        """Returns the request's id."""

    @property
    def k(self) -> str:
        """Returns the permit."""

    @property
    def fence(self) -> bytes:
        """Returns the lease's fence."""

    @property
    def op(self) -> bytes:
        """Returns the op of the acquire."""


def complete(
    held: LeaseProof, ids: list[bytes], results: list[Arg], verdicts: list[Verdict], *, keep: bool
) -> Call[CompleteReply]:
    """Returns the call that settles entries of a slice.

    `ids` are the done ones, `results` their (head, body) pairs, flat. Without `keep` the others
    go back, not begun.
    """
    lease = (held.k, held.fence, held.op)
    return _complete(held.request_id, lease, ids, results, verdicts, b"1" if keep else b"u")


def give_back(
    request_id: str,
    k: str,
    fence: str,
    op: str,
    verdicts: Sequence[Verdict] = (),
    *,
    is_unbegun: bool = False,
) -> Call[CompleteReply]:
    """Returns the call that gives a lease back, uncharged: its entries are delivered again.

    Entries with a verdict are settled by it. If the others are known to be `is_unbegun`, they need
    not be delivered alone.
    """
    how = b"u" if is_unbegun else b"0"
    return _complete(request_id, (k, fence, op), [], [], verdicts, how)


def settle_part(
    request_id: str,
    k: str,
    fence: str,
    op: str,
    ids: list[bytes],
    results: Sequence[Arg],
    verdicts: Sequence[Verdict],
    *,
    keep: bool,
) -> Call[CompleteReply]:
    """Returns the call that settles entries of a lease beside a slow call of its unit.

    With `keep` the lease goes on with the others.
    """
    how = b"1" if keep else b"u"
    return _complete(request_id, (k, fence, op), ids, results, verdicts, how)


def _complete(
    request_id: str,
    lease: tuple[Arg, Arg, Arg],
    ids: list[bytes],
    results: Sequence[Arg],
    verdicts: Sequence[Verdict],
    keep: bytes,
) -> Call[CompleteReply]:
    args: list[Arg] = [b"", *lease, keep, b"%d" % len(ids), *ids, *results]
    args += words_of(verdicts)
    script = signed(library(), "complete", _COMPLETE)
    return TextCall(script, keys.request_keys(request_id), args, scripts.CompleteReply.of)


def words_of(verdicts: Sequence[Verdict]) -> list[Arg]:
    """Returns the verdicts as the scripts take them, five words each."""
    words: list[Arg] = []
    for one in verdicts:
        words += (one.entry_id, one.verdict, str(one.delay_ms), one.head, one.error)
    return words


def extend(
    request_id: str, k: str, fence: str, op: str, term_ms: int | None = None
) -> Call[ExtendReply]:
    """Returns the call that asks for more time: ok | cancelled | lost | ended | gone.

    The lease lasts `term_ms` from then on; None = as long as the request's leases do.
    """
    term = "" if term_ms is None else term_ms
    return scripts.extend(keys.request_keys(request_id), k=k, fence=fence, op=op, term=term)


def reap(
    queue: str,
    request_id: str,
    *,
    worker: str = "",
    started: str = "",
    k: str = "",
    fence: str = "",
    how: str = "",
    missing: list[str] | None = None,
) -> Call[ReapReply]:
    """Returns the call that takes leases back: expired ones, a dead worker's, or the one named.

    `how` the process ended becomes the error of the charged entries; "" = not known.
    """
    return scripts.reap(
        keys.request_keys(request_id),
        worker=worker,
        started=started,
        k=k,
        fence=fence,
        queue=queue,
        how=how,
        missing=missing or (),
    )


# ------------------------------------------------------------------ exchange
# Completes leases and acquires the next ones in one call, where one server has all keys.
#
# Elsewhere a unit takes the same steps one by one: complete, dispatch, pop, acquire.


# In the order of its signature: a unit makes thousands of these calls a second.
_PARAMS = (
    "now",
    "least",
    "longest",
    "most",
    "place",
    "op",
    "ttl",
    "worker",
    "started",
    "want",
    "shared",
    "measured",
)


@dataclass(frozen=True, slots=True)
class Exchanger:
    """The unit that makes exchanges, one at a time: its worker, and its place among the units.

    `place` may name those of several units, which make an exchange together: see `of_many`.
    """

    queue: str
    worker: str
    started: str
    place: bytes
    keys: tuple[bytes, ...]  # of the dispatch slot, besides the lanes

    def of_many(self, units: Iterable[int]) -> Exchanger:
        """Returns the exchanger of these units, up to 400. The first ones take one token each."""
        return replace(self, place=b" ".join([_place(unit) for unit in units]))


def exchange(
    unit: Exchanger,
    op: bytes,
    settled: Iterable[tuple[Slice, Part]],
    *,
    lanes: Sequence[bytes] = (),
    want: int = 0,
    shared: bool = False,
    sizes: Sequence[tuple[str, int]] = (),
) -> SingleServer[scripts.ExchangeReply]:
    """Returns the call that settles leases, pops up to `want` tokens and acquires with them.

    `lanes` are popped from, the most urgent one first. `sizes`: how many sub-requests a slice of
    these requests may have; 1 for any other. Requests with a size share the time of their sizes.
    Ops of a unit grow. With the op of an earlier exchange, and nothing else, the call returns the
    leases of the earlier one. If the earlier one arrives later, it acquires nothing.
    """
    args: list[Arg] = [
        b"", settings.MARKER_LEAST_MS, settings.MARKER_MS, settings.LOG_MOST, unit.place, op,
        settings.TAKEN_TTL_MS, unit.worker, unit.started, want, b"1" if shared else b"",
        len(sizes), *(word for pair in sizes for word in pair),
    ]  # fmt: skip
    for held, (ids, results, verdicts) in settled:
        args += (held.request_id, held.k, held.fence, held.op, len(ids), len(verdicts))
        args += ids
        args += results
        if verdicts:
            args += words_of(verdicts)
    names = (*unit.keys, *(lanes or keys.lanes(unit.queue)[:1]))
    script = signed(library(), "exchange", _PARAMS)
    return SingleServer(TextCall(script, names, args, scripts.ExchangeReply.of))


@lru_cache(maxsize=1024)
def exchange_unit(queue: str, worker: str, started: str, unit: int) -> Exchanger:
    """Returns the exchanger of a worker's unit, by the unit's number."""
    log = keys.active(queue), keys.logged(queue), keys.completed(queue)
    names = (*log, *keys.bound(queue), keys.taken(queue, worker), *keys.turns(queue))
    return Exchanger(queue, worker, started, _place(unit), names)


def _place(unit: int) -> bytes:
    """Returns the field of a unit's note in `taken`."""
    return b"x%d" % unit


# ------------------------------------------------------------------ rights
# Asks Redis, before any work is taken, whether this user may do all that a worker does.
#
# Each command is sent in a form that changes nothing, because Redis checks the right first. Unlike
# ACL DRYRUN, that needs no further right and works on every version. It also finds commands that
# rename-command has removed.


_KEPT_MS = 10_000  # how long the string that commands are tried on stays if it is not removed
_NO_REQUEST = "?"  # no request has this id
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
    **dict.fromkeys(("xrange", "xrevrange", "zcount", "zrange", "zrangebyscore"), (b"0", b"0")),
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


async def check_rights(queue: str, worker: str) -> None:
    """Returns when this user may send all that a worker sends. Raises RedisError."""
    info = await _info()
    wanted, key = sorted(commands(info)), keys.rights(queue, worker)
    touched = keys.request_keys(_NO_REQUEST)
    tries = [harmless(name, key) for name in wanted]
    tries += [Command(b"UNLINK", one) for one in touched]
    # Most commands refuse a string, so that they change nothing.
    await Batch([Command(b"SET", key, b"", b"PX", _KEPT_MS)], lenient=True)
    replies: list[Any] = await Batch(tries, lenient=True)
    await Batch([Command(b"UNLINK", key)], lenient=True)
    # A node that is away proves nothing of rights, and work of the others goes on.
    names = [*wanted, *(one.decode().replace(_NO_REQUEST, "*") for one in touched)]
    found = _missing(dict(zip(names, replies, strict=True)))
    if any(found):
        raise RedisUnfit(_sentence(found))


async def _info() -> dict[str, str]:
    """Returns the INFO of the first node that answers."""
    error: RedisUnreachable | None = None
    for node in await Nodes():
        try:
            return read_info(await OnNode(node, Command(b"INFO")))
        except RedisUnreachable as failure:
            error = failure
    raise error or RedisUnreachable("no node of the cluster answers")


def commands(info: Mapping[str, str]) -> set[str]:
    """Returns the commands that a worker sends to a server of this INFO, as an ACL names them."""
    from fairlane.protocol import acl

    role, server = acl.ROLES["worker"], acl.version(info["redis_version"])
    found = set(role.commands)
    for name in role.scripts:
        found |= acl.commands_in(library()[name], Dialect.of(info))
    found -= acl.CONNECTION | acl.CALL  # the driver has sent them before
    return {name for name in found if acl.has_command(server, name)}


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
