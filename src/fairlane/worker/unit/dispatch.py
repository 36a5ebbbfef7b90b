"""How a unit dispatches what replies ask for, and what it does with tokens of a node that is away.

A node that does not answer must delay its own requests only. So a token of such a request is put
off: it waits in `delayed` for about as long as its node has been away so far, and then comes back
to its lane. It is neither lost nor popped again and again. A shard that is away takes no tokens:
the calls for it are kept, and are sent with a later batch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Token
    from fairlane.operations.lease.tokens import Minted
    from fairlane.worker.unit.unit import Unit

_log = logging.getLogger("fairlane.worker")
_KEPT = 200  # calls for shards that are away; more are left to the auditor
_QUIET_S = 10.0  # between two such lines of the log
_LEAST_MS, _MOST_MS = 1_000, 15_000


def send(unit: Unit, calls: Sequence[Command | Call]) -> Operation[None]:
    """Sends these calls. Those for a shard that is away are kept, and do not delay the others."""
    if not calls:
        return
    if unit.turns.is_one:
        yield Batch(calls)
        return
    replies = yield from ask_all(Batch(calls, lenient=True, away_s=settings.SHARD_AWAY_S))
    keep_unsent(unit, calls, replies)
    if refused := refusals(replies):
        raise refused[0]


def ask_all(batch: Batch) -> Operation[Sequence[Any]]:
    """Returns the replies to a lenient batch, also when none of its nodes answers."""
    try:
        replies: Sequence[Any] = yield batch
    except NodeAway as error:
        return [error] * len(batch.steps)
    return replies


def keep_unsent(unit: Unit, calls: Iterable[Command | Call], replies: Iterable[Any]) -> None:
    """Keeps, for a later batch, those calls whose node is away."""
    pairs = zip(calls, replies, strict=True)
    unit.unsent += [call for call, reply in pairs if isinstance(reply, NodeAway)]
    del unit.unsent[:-_KEPT]


def refusals(replies: Iterable[Any]) -> list[FairlaneError]:
    """Returns the errors of calls that a later batch need not repeat."""
    errors = (reply for reply in replies if isinstance(reply, FairlaneError))
    return [error for error in errors if not isinstance(error, NodeAway)]


def log_refusals(replies: Iterable[Any]) -> None:
    """Logs which dispatches failed beside a pop or an acquire, whose tokens must not be lost."""
    for error in refusals(replies):
        _log.warning("could not dispatch what a reply asked for: %s", error)


def put_off(unit: Unit, token: Token, lane: bytes, error: NodeAway) -> Minted:
    """Returns the entry that dispatches a token again later, because its request's node is away.

    `lane` is the key of the list that the token came from.
    """
    note_away(unit, f"put off a token of request {token.request_id}", error)
    delay = min(_MOST_MS, max(_LEAST_MS, int(error.away_s * 1000)))
    permit = f"{token.k}.{token.g}".encode()
    return token.request_id, [b"%d" % keys.number_of(lane), permit, delay]


def note_away(unit: Unit, what: str, error: NodeAway) -> None:
    """Logs what happens because a node is away, but not each time, as it may happen very often."""
    now = clock.mono_s()
    if now >= unit.quiet_until:
        unit.quiet_until = now + _QUIET_S
        _log.warning("%s: %s", what, error)
