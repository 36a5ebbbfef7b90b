"""Hands messages over between plain lists: fan-out, forwarding, balance, and its services."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Literal, NamedTuple

from fairlane.common.xid import xid_of
from fairlane.errors import FairlaneError, InvalidArgument, RedisUnreachable
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, SingleServer, run_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.protocol.keys import Namespace
    from fairlane.protocol.scripts import PushShortestReply
    from fairlane.protocol.steps import Arg, Call


# ------------------------------------------------------------------ services
# Registers services under a namespace, and counts which of their messages were done in time.


_PAGE = 500  # ids of one look at a list


class Settled(NamedTuple):
    """How many tracked messages were done in time, and how many were not."""

    done: int
    timed_out: int


class Service(NamedTuple):
    """A service that is registered, renewed `age_ms` ago. One that is not alive has expired."""

    id: str
    is_alive: bool
    host: str
    pid: str
    age_ms: int


async def read_services(namespace: Namespace) -> list[Service]:
    """Returns the services of a namespace, newest first; it changes nothing."""
    ids: list[bytes] = await Command(b"LRANGE", namespace.ids, 0, -1)
    fields = (b"host", b"pid", b"renewed")
    looks = [Command(b"HMGET", namespace.service(_text(one)), *fields) for one in ids]
    rows = await run_all(looks)
    seconds, _ = await Command(b"TIME")
    found = []
    for one, (host, pid, renewed) in zip(ids, rows, strict=True):
        age_ms = max(0, int(seconds) - int(renewed or 0)) * 1000
        found.append(
            Service(_text(one), host is not None, _text(host or b""), _text(pid or b""), age_ms)
        )
    return found


async def register(namespace: Namespace, host: str, pid: int, expire_s: int, capacity: int) -> str:
    """Registers a service and returns its id. Services whose registration has expired go first."""
    ids: list[bytes] = await Command(b"LRANGE", namespace.ids, 0, -1)
    if ids:
        looks = [Command(b"EXISTS", namespace.service(_text(one))) for one in ids]
        known = await Batch(looks)
        gone = [one for one, is_known in zip(ids, known, strict=True) if not is_known]
        if gone:
            await Batch([Command(b"LREM", namespace.ids, 0, one) for one in gone])
    number: int = await Command(b"INCR", namespace.last_id)
    call = scripts.keep_service(
        (namespace.service(str(number)), namespace.ids),
        id=number,
        is_new="1",
        expire=expire_s,
        capacity=capacity,
        host=host,
        pid=pid,
    )
    await call
    return str(number)


async def renew(namespace: Namespace, service_id: str, expire_s: int) -> bool:
    """Renews a registration; returns False if a person has deleted it, or it has expired."""
    call = scripts.keep_service(
        (namespace.service(service_id), namespace.ids),
        id=service_id,
        is_new="",
        expire=expire_s,
        capacity=0,
        host="",
        pid="",
    )
    is_ok: bool = (await call).is_ok
    return is_ok


async def has_services(namespace: Namespace) -> bool:
    """Returns False if no service was ever registered: Redis has lost what it had."""
    return bool(await Command(b"EXISTS", namespace.last_id))


async def unregister(namespace: Namespace, service_id: str) -> None:
    """Ends a registration."""
    await Batch(
        [
            Command(b"DEL", namespace.service(service_id)),
            Command(b"LREM", namespace.ids, 0, service_id),
        ]
    )


async def settle_messages(namespace: Namespace) -> Settled:
    """Counts what consumers have done, and what they have not done in time, each message once.

    Reads at most 500 ids of each list, oldest first; a caller repeats it. While consumers have
    reported more than that, no message is counted as timed out, because it may be among them.
    """
    names = namespace.done, namespace.messages
    finished, tracked = await Batch([Command(b"LRANGE", name, -_PAGE, -1) for name in names])
    if len(finished) == _PAGE:
        tracked = []
    wanted = [*reversed(finished), *reversed(tracked)]
    if not wanted:
        return Settled(0, 0)
    keys = [*reversed(names), namespace.metrics("done"), namespace.metrics("timeout")]
    keys += [namespace.settled, *(namespace.message(_text(one)) for one in wanted)]
    call = scripts.settle_messages(keys, ended=len(finished), wanted=wanted)
    reply = await call
    return Settled(reply.done, reply.timed_out)


def _text(one: bytes) -> str:
    return one.decode("utf-8", "surrogateescape")


# ------------------------------------------------------------------ balance
# Pushes messages to the shortest of several lists.
#
# Where one script reaches all lists, it decides by their lengths at that moment. In a cluster,
# lists in several slots are compared by a bounded look, and one script for each list pushes.


LOOKS = 8  # lists of one look
MOST_LISTS = 1_000
_MARKER_MS = 600_000  # a call is repeated for two minutes at most


def check_lists(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of 1 to 1,000 different lists. Raises InvalidArgument."""
    return keys.check_names("list", names, MOST_LISTS, keys.check_list)


async def push_shortest(names: Sequence[str], messages: Sequence[bytes]) -> dict[str, int]:
    """Pushes up to 1,000 messages, each to the shortest list; returns how many each list got.

    A repeat of a call with a lost reply pushes nothing again. Raises InvalidArgument if a key holds
    no list; nothing is pushed then, except in a cluster to lists in other slots.
    """
    op = keys.new_id()
    call = _call(names, messages, op)
    reply = await SingleServer(call)
    if reply is None and len({keys.tag_of(name) for name in names}) == 1:
        reply = await call
    if reply is not None:
        return _counts(names, reply)
    plan = await _look(names, messages)
    calls = [_call([name], part, op) for name, part in plan.items()]
    counts: dict[str, int] = {}
    for name, reply in zip(plan, await Batch(calls), strict=True):
        counts |= _counts([name], reply)
    return counts


def _call(names: Sequence[str], messages: Sequence[bytes], op: str) -> Call[PushShortestReply]:
    marker = keys.balanced(names[0], op)
    lists = [keys.raw(name) for name in names]
    return scripts.push_shortest([marker, *lists], ttl=_MARKER_MS, messages=messages)


async def _look(names: Sequence[str], messages: Sequence[bytes]) -> Mapping[str, list[bytes]]:
    """Returns which messages go to which list, by the lengths of at most 8 of them.

    A list whose node does not answer gets none. Raises the error of the first list if no node
    answers, and any other error.
    """
    looked = names if len(names) <= LOOKS else random.sample(names, LOOKS)
    looks = [Command(b"LLEN", keys.raw(name)) for name in looked]
    found = await Batch(looks, lenient=True)
    lengths: dict[str, int] = {}
    for name, length in zip(looked, found, strict=True):
        if isinstance(length, FairlaneError) and not isinstance(length, RedisUnreachable):
            raise length
        if not isinstance(length, FairlaneError):
            lengths[name] = length
    if not lengths:
        raise found[0]
    plan: dict[str, list[bytes]] = {}
    for message in messages:
        best = min(lengths, key=lambda name: lengths[name])
        lengths[best] += 1
        plan.setdefault(best, []).append(message)
    return plan


def _counts(names: Sequence[str], reply: PushShortestReply) -> dict[str, int]:
    if reply.is_wrongtype:
        raise InvalidArgument(
            f"key {names[reply.at]} holds no list: name another, or delete what it holds"
        )
    return {name: count for name, count in zip(names, reply.counts, strict=True) if count}


# ------------------------------------------------------------------ forwarding
# Forwards a list to another Redis: numbered batches, which the target takes once.
#
# The source numbers its messages; the target keeps the last number. So a batch that is sent twice,
# by one forwarder or by two, is pushed once. The lease only keeps replicas from doing the same
# work.


Disagreement = Literal["gap", "diverged"]
REASONS: dict[Disagreement, str] = {
    "gap": "the target had lost messages that it had confirmed, or is another one",
    "diverged": "the source was set back, and some messages may have come twice",
}
BATCH = 100  # messages of one round trip to each server


class Flight(NamedTuple):
    """A batch on its way: `before` is the number before its first message.

    `chain` is the digest of all messages of the epoch up to that number. `waiting` is how many
    messages are behind the batch.
    """

    epoch: str
    before: int
    chain: str
    waiting: int
    messages: list[bytes]

    @property
    def lag(self) -> int:
        """Returns how many messages are not in the target."""
        return self.waiting + len(self.messages)


class Standby(NamedTuple):
    """Another forwarder is active; its lease ends in so many ms unless it is extended."""

    left_ms: int


class ForwardState(NamedTuple):
    """How far the forwarding of a list is.

    `lag` is how many messages are not settled: those in the source, and the `flying` ones on their
    way. The last settled one has the number `sequence` in this `epoch`; `forwarded` counts those of
    all epochs. `owner`: the forwarder that has the lease, or ""; the lease ends at `until_ms`.
    `restarts`: how often the numbers began again, because the two servers did not agree; last at
    `restarted_ms`, for this `reason`. Times are in ms since 1970.
    """

    lag: int
    flying: int
    forwarded: int
    epoch: str
    sequence: int
    owner: str
    until_ms: int
    restarts: int
    restarted_ms: int
    reason: Disagreement

    def with_landed(self, last: int) -> ForwardState:
        """Returns the state as the target sees it, which has the messages up to this number."""
        ahead = min(self.flying, max(0, last - self.sequence))
        return self._replace(
            lag=self.lag - ahead, flying=self.flying - ahead, forwarded=self.forwarded + ahead
        )


async def next_forward(
    source: str, owner: str, lease_ms: int, fresh: str, landed: Flight | None = None
) -> Flight | Standby:
    """Settles what has landed, takes or extends the lease, and returns the next batch.

    `fresh` is the epoch of a list that was never forwarded. With `lease_ms` 0 the lease ends, and
    no batch is taken. May be repeated at any time. Raises InvalidArgument if the key holds no list;
    nothing is changed then.
    """
    call = scripts.next_forward(
        (keys.raw(source), keys.in_flight(source), keys.forward_state(source)),
        owner=owner,
        lease=lease_ms,
        most=BATCH,
        fresh=fresh,
        epoch=landed.epoch if landed else "",
        before=landed.before if landed else 0,
        count=len(landed.messages) if landed else 0,
        chain=chain_of(landed.chain, landed.messages) if landed else "",
    )
    reply = await call
    if reply.is_wrongtype:
        raise InvalidArgument(
            f"key {source} at the source holds no list: name another, or delete what it holds"
        )
    if reply.is_held:
        return Standby(reply.left)
    epoch, chain = reply.epoch.decode(), reply.chain.decode()
    return Flight(epoch, reply.sequence, chain, reply.waiting, reply.messages)


def chain_of(chain: str, messages: Iterable[bytes]) -> str:
    """Returns the digest of all messages up to the last of these; land.lua computes the same."""
    for message in messages:
        chain = hashlib.sha1(chain.encode() + message, usedforsecurity=False).hexdigest()
    return chain


class Landing(NamedTuple):
    """What became of a batch: `ok`, and how many messages the target did not have yet.

    `gap` or `diverged`: one of the servers was set back. `wrongtype`: the target holds no list.
    Nothing is written unless it is `ok`.
    """

    word: str
    pushed: int


async def land(target: str, flight: Flight) -> Landing:
    """Pushes a batch to the target; what the target has already is left out."""
    call = scripts.land(
        (keys.raw(target), keys.landed(target)),
        epoch=flight.epoch,
        before=flight.before,
        chain=flight.chain,
        messages=flight.messages,
    )
    reply = await call
    return Landing(reply.word, reply.pushed if reply.is_ok else 0)


async def restart_forward(source: str, epoch: str, fresh: str, reason: Disagreement) -> None:
    """Begins another epoch, unless another forwarder has begun one; the reason is recorded."""
    state = (keys.forward_state(source),)
    await scripts.restart_forward(state, epoch=epoch, fresh=fresh, reason=reason)


async def wait_for_message(source: str, block_s: float) -> None:
    """Waits up to `block_s` seconds for a message, and takes it. Only for the active forwarder."""
    used = keys.raw(source), keys.in_flight(source)
    await Command(b"BLMOVE", used[0], used[1], b"RIGHT", b"LEFT", block_s)


async def read_state(source: str) -> ForwardState:
    """Returns how far the forwarding of a list is; it changes nothing."""
    fields = (b"epoch", b"sequence", b"earlier", b"owner", b"until")
    of_restarts = (b"restarts", b"restarted", b"reason")
    waiting, flying, known = await Batch(
        [
            Command(b"LLEN", keys.raw(source)),
            Command(b"LLEN", keys.in_flight(source)),
            Command(b"HMGET", keys.forward_state(source), *fields, *of_restarts),
        ]
    )
    epoch, sequence, earlier, owner, until, restarts, restarted, reason = known
    return ForwardState(
        lag=waiting + flying,
        flying=flying,
        forwarded=int(earlier or 0) + int(sequence or 0),
        epoch=(epoch or b"").decode("utf-8", "replace"),
        sequence=int(sequence or 0),
        owner=owner.decode("utf-8", "replace") if owner else "",
        until_ms=int(until or 0),
        restarts=int(restarts or 0),
        restarted_ms=int(restarted or 0),
        reason="diverged" if (reason or b"").decode() == "diverged" else "gap",
    )


async def read_landed(target: str, epoch: str) -> int:
    """Returns the number of the last message of an epoch that is in the target; 0 = none is."""
    found = await Command(b"HGET", keys.landed(target), epoch)
    return int(found.partition(b":")[0]) if found else 0


async def server_ids() -> set[bytes]:
    """Returns the ids that the servers drew when they started: one, or those of all primaries."""
    found: set[bytes] = set()
    for node in await Nodes():
        info: bytes = await OnNode(node, Command(b"INFO", b"server"))
        found.update(line for line in info.splitlines() if line.startswith(b"run_id:"))
    return found


# ------------------------------------------------------------------ hand over
# Hands messages over from one list to several, through a pending list.
#
# A message is pushed only by the script that removes it from the pending list. So any process may
# hand over what is pending, also what a process that died has left.


HAND_OVER_BATCH = 100  # messages of one hand-over
_MOST_PUSHES = 10_000  # of one hand-over: more would keep the server from others for too long

To = Literal["all", "shortest"]


class Tracking(NamedTuple):
    """How messages are tracked: by which service, and the times of each message in seconds."""

    namespace: Namespace
    service: str
    timeout_s: int
    expire_s: int


class Route(NamedTuple):
    """The lists of a hand-over: each message goes `to` all of `outs`, or to the shortest one."""

    source: str
    pending: str
    outs: tuple[str, ...]
    to: To = "all"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns all lists."""
        return (self.source, self.pending, *self.outs)


class Backlog(NamedTuple):
    """How many messages wait in the source and in the pending list, and in each list behind."""

    waiting: int
    pending: int
    outs: tuple[int, ...]


async def fan_out(route: Route, block_s: float, tracking: Tracking | None = None) -> int | None:
    """Hands over up to 100 messages and 1 MiB, oldest first; returns how many.

    None = no message was there. 0 = another process, or the first copy of a repeated call, has
    handed them over, so there may be more. If none is there, waits up to `block_s` seconds for one.
    Raises InvalidArgument if one of the keys holds no list; nothing is changed then.
    """
    messages = await _claim_messages(route)
    if not messages and block_s > 0:
        source, pending = keys.raw(route.source), keys.raw(route.pending)
        await Command(b"BLMOVE", source, pending, b"RIGHT", b"LEFT", block_s)
        messages = await _claim_messages(route)
    if not messages:
        return None
    outs = [keys.raw(name) for name in route.outs]
    used = [keys.raw(route.pending), *outs]
    rows: Sequence[Arg] = messages
    if tracking is not None:
        more, rows = await _tracked(messages, tracking.namespace)
        used += more
    call = scripts.fan_out(
        used,
        to=route.to,
        count=len(outs),
        service=tracking.service if tracking else "",
        timeout=tracking.timeout_s if tracking else 1,
        expire=tracking.expire_s if tracking else 1,
        rows=rows,
    )
    reply = await call
    if reply.is_wrongtype:
        raise _no_list(used[1 + reply.at])
    moved: int = reply.moved
    return moved


async def _claim_messages(route: Route) -> list[bytes]:
    used = keys.raw(route.source), keys.raw(route.pending)
    most = max(1, min(HAND_OVER_BATCH, _MOST_PUSHES // len(route.outs)))
    reply = await scripts.claim_messages(used, most=most)
    if reply.is_wrongtype:
        raise _no_list(used[reply.at])
    found: list[bytes] = reply.messages
    return found


def _no_list(key: bytes) -> InvalidArgument:
    name = key.decode("utf-8", "replace")
    return InvalidArgument(f"key {name} holds no list: name another, or delete what it holds")


async def _tracked(
    messages: Sequence[bytes], namespace: Namespace
) -> tuple[list[bytes], list[Arg]]:
    """Draws an id for each message; returns the keys and the rows of fan_out."""
    last: int = await Command(b"INCRBY", namespace.last_message, len(messages))
    keys = [namespace.messages]
    rows: list[Arg] = []
    for number, message in enumerate(messages, last - len(messages) + 1):
        own = xid_of(message)
        keys += [namespace.message(str(number)), namespace.message_of(own.text)]
        rows += [message, number, own.text.encode("utf-8", "replace"), own.kind]
    return keys, rows


async def read_backlog(route: Route) -> Backlog:
    """Returns the lengths of all lists of a route."""
    lengths = await Batch([Command(b"LLEN", keys.raw(name)) for name in route.names])
    return Backlog(lengths[0], lengths[1], tuple(lengths[2:]))
