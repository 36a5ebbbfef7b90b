"""Durability: a write is acknowledged when enough replicas have it.

A server has one replication offset for all keys, so one confirmed write covers everything that this
server acknowledged before. Keys in another slot of a cluster (`active`, lanes, the completion log)
need no confirmation, because doctor and auditor make them again from the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common.text import exact
from fairlane.errors import NotDurable, RedisUnfit, RequestEnded, RequestLost
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import CANCELLED
from fairlane.protocol.steps import Batch, Call, Command, Confirm, Confirmed

if TYPE_CHECKING:
    from fairlane.protocol.scripts import ConfirmReply
    from fairlane.protocol.steps import R


async def check_replicas(request_id: str, replicas: int) -> None:
    """Raises RedisUnfit when the request's server has fewer replicas than that at all.

    So nothing is written, and no caller waits, for a confirmation that cannot come.
    """
    # INFO goes where the step with a key goes: to the server of this request.
    ask = [Command(b"EXISTS", keys.request_hash(request_id)), Command(b"INFO", b"replication")]
    _, info = await Batch(ask)
    online = count_online(info)
    if online < replicas:
        raise RedisUnfit(
            f"request {request_id} was not submitted: durable={replicas} needs "
            f"{_replicas(replicas)} and its Redis has {online}"
        )


def count_online(info: bytes | str) -> int:
    """Counts the replicas that follow a primary now, by its INFO replication."""
    text = info if isinstance(info, str) else info.decode("utf-8", "replace")
    return sum(line.startswith("slave") and ",state=online," in line for line in text.splitlines())


async def confirm_submission(request_id: str, replicas: int, chain: str) -> None:
    """Confirms that a submission is on the replicas; `chain` is the digest of all of it.

    Raises NotDurable, RequestLost when a failover took some of it before, and RequestEnded when it
    was cancelled before.
    """
    call = _confirm(request_id)
    found: Confirmed = await Confirm(call, replicas)
    reply = found.reply
    # Open: the seal is lost, which changes no digest.
    if reply.is_gone or reply.chain.decode() != chain or reply.open:
        raise RequestLost(
            f"request {request_id} lost a part of its submission in a failover: "
            "submit the same again with the same id"
        )
    if reply.state in CANCELLED:
        raise RequestEnded(
            f"request {request_id} was cancelled before its submission was confirmed: fairlane "
            "status names the reason"
        )
    if is_short(found, replicas):
        raise NotDurable(
            f"request {request_id} is submitted and will run, but {_shortfall(found, replicas)}: a "
            "failover now may lose it; submit the same again with the same id to confirm it"
        )


async def confirm_requeue(request_id: str, replicas: int) -> None:
    """Confirms that the replicas have a requeue. Raises NotDurable."""
    found: Confirmed = await Confirm(_confirm(request_id), replicas)
    if is_short(found, replicas):
        raise NotDurable(
            f"dead sub-requests of request {request_id} wait again, but "
            f"{_shortfall(found, replicas)}: a failover now may take that back; requeue those that "
            "are dead afterwards"
        )


async def confirm_end(request_id: str, replicas: int, state: str) -> bool:
    """Confirms that an end is on the replicas; returns False if a failover took it back before.

    Returns True immediately for a request with durable=0. Raises NotDurable.
    """
    if not replicas:
        return True
    call = _confirm(request_id)
    found: Confirmed = await Confirm(call, replicas)
    reply = found.reply
    if reply.is_gone or reply.state.decode() != state:
        return False
    if is_short(found, replicas):
        raise NotDurable(
            f"request {request_id} has ended ({state}), but {_shortfall(found, replicas)}: a "
            "failover now may take that back and run it again; wait again to confirm it"
        )
    return True


async def confirm_settled(call: Call[R], request_id: str, replicas: int) -> tuple[R, str]:
    """Settles entries of a slice and confirms that; returns the reply, and what is not confirmed.

    The second is "" if all is confirmed. Only after `ok` has this call written. After `already` and
    `ended` another write is confirmed.
    """
    found: Confirmed = await Confirm(call, replicas)
    settled = found.reply
    if settled.is_lost or settled.is_gone:  # nothing was settled
        return settled, ""
    if not settled.is_ok:
        again = _confirm(request_id)
        again.away_s = call.away_s
        found = await Confirm(again, replicas)
    return settled, _shortfall(found, replicas) if is_short(found, replicas) else ""


def is_short(found: Confirmed, replicas: int) -> bool:
    """Returns True when less was confirmed than the request needs."""
    return found.replicas < replicas or not found.is_synced


def _confirm(request_id: str) -> Call[ConfirmReply]:
    return scripts.confirm(keys.request_keys(request_id))


def _shortfall(found: Confirmed, replicas: int) -> str:
    if found.replicas < replicas:
        return (
            f"only {found.replicas} of {_replicas(replicas)} confirmed it within "
            f"{exact(settings.CONFIRM_MS / 1000)} s"
        )
    return (
        f"its server's append-only file was not on disk within {exact(settings.SYNC_MS / 1000)} s "
        "(is appendfsync always or everysec?)"
    )


def _replicas(count: int) -> str:
    return f"{count} replica" + ("" if count == 1 else "s")
