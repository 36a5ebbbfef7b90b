"""Forwards a list to another Redis: numbered batches, which the target takes once.

The source numbers its messages; the target keeps the last number. So a batch that is sent twice, by
one forwarder or by two, is pushed once. The lease only keeps replicas from doing the same work.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.protocol import list_keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.protocol.steps import Operation

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


def next_flight(
    source: str, owner: str, lease_ms: int, fresh: str, landed: Flight | None = None
) -> Operation[Flight | Standby]:
    """Settles what has landed, takes or extends the lease, and returns the next batch.

    `fresh` is the epoch of a list that was never forwarded. With `lease_ms` 0 the lease ends, and
    no batch is taken. May be repeated at any time. Raises InvalidArgument if the key holds no list;
    nothing is changed then.
    """
    call = library().next_forward(
        (list_keys.raw(source), list_keys.in_flight(source), list_keys.forward_state(source)),
        owner=owner,
        lease=lease_ms,
        most=BATCH,
        fresh=fresh,
        epoch=landed.epoch if landed else "",
        before=landed.before if landed else 0,
        count=len(landed.messages) if landed else 0,
        chain=chain_of(landed.chain, landed.messages) if landed else "",
    )
    reply = yield from call.run()
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


def land(target: str, flight: Flight) -> Operation[Landing]:
    """Pushes a batch to the target; what the target has already is left out."""
    call = library().land(
        (list_keys.raw(target), list_keys.landed(target)),
        epoch=flight.epoch,
        before=flight.before,
        chain=flight.chain,
        messages=flight.messages,
    )
    reply = yield from call.run()
    return Landing(reply.word, reply.pushed if reply.is_ok else 0)


def restart(source: str, epoch: str, fresh: str, reason: Disagreement) -> Operation[None]:
    """Begins another epoch, unless another forwarder has begun one; the reason is recorded."""
    state = (list_keys.forward_state(source),)
    yield library().restart_forward(state, epoch=epoch, fresh=fresh, reason=reason)


def wait_for_message(source: str, block_s: float) -> Operation[None]:
    """Waits up to `block_s` seconds for a message, and takes it. Only for the active forwarder."""
    keys = list_keys.raw(source), list_keys.in_flight(source)
    yield Command(b"BLMOVE", keys[0], keys[1], b"RIGHT", b"LEFT", block_s)


def read_state(source: str) -> Operation[ForwardState]:
    """Returns how far the forwarding of a list is; it changes nothing."""
    fields = (b"epoch", b"sequence", b"earlier", b"owner", b"until")
    of_restarts = (b"restarts", b"restarted", b"reason")
    waiting, flying, known = yield Batch(
        [
            Command(b"LLEN", list_keys.raw(source)),
            Command(b"LLEN", list_keys.in_flight(source)),
            Command(b"HMGET", list_keys.forward_state(source), *fields, *of_restarts),
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


def read_landed(target: str, epoch: str) -> Operation[int]:
    """Returns the number of the last message of an epoch that is in the target; 0 = none is."""
    found = yield Command(b"HGET", list_keys.landed(target), epoch)
    return int(found.partition(b":")[0]) if found else 0


def server_ids() -> Operation[set[bytes]]:
    """Returns the ids that the servers drew when they started: one, or those of all primaries."""
    found: set[bytes] = set()
    for node in (yield Nodes()):
        info: bytes = yield OnNode(node, Command(b"INFO", b"server"))
        found.update(line for line in info.splitlines() if line.startswith(b"run_id:"))
    return found
