"""Dispatches the tokens in replies, and postpones the tokens of an unreachable node.

A node that does not answer must delay only its own requests. So a token of such a request waits in
`delayed` for about as long as its node has been unreachable so far, and then returns to its lane.
It is neither lost nor popped again and again. An unreachable shard takes no tokens: the calls for
it are kept, and are sent with a later batch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations import tokens
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlane.model import Token
    from fairlane.protocol.replies import Reply
    from fairlane.worker.unit.unit import Unit

_log = logging.getLogger("fairlane.worker")
_KEPT = 200  # calls for unreachable shards; the auditor finds the tokens of further ones
_QUIET_S = 10.0  # between two such lines of the log
_LEAST_MS, _MOST_MS = 1_000, 15_000


@dataclass(slots=True)
class FollowUps:
    """What the replies of many requests ask to dispatch, in few calls."""

    queue: str
    lane: bytes = b""  # the key of the list the tokens came from
    minted: list[tokens.Minted] = field(default_factory=list)
    endings: list[tokens.Ending] = field(default_factory=list)
    more: list[Command | Call] = field(default_factory=list)
    on_delay: Callable[[int], None] | None = None  # called with the ms of the shortest delay

    def add(self, request_id: str, reply: Reply) -> None:
        """Adds what a reply contains: tokens, or the end of its request."""
        if reply.is_ended:
            self.endings.append((request_id, reply.summary))
        elif reply.has_tokens and (minted := reply.tokens):
            self.minted.append((request_id, minted))

    def put_back(self, rest: Iterable[Token]) -> None:
        """Adds tokens that are still valid: they become the next ones of their lane again."""
        if names := [token.text for token in rest]:
            self.more += tokens.push(self.lane, names)

    def calls(self) -> list[Command | Call]:
        """Removes and returns all calls."""
        calls, self.more = self.more, []
        if self.minted:
            if self.on_delay is not None and (delay := shortest_delay(self.minted)):
                self.on_delay(delay)
            calls += tokens.insert_all(self.queue, self.minted)
            self.minted = []
        if self.endings:
            calls += tokens.retire_all(self.queue, self.endings)
            self.endings = []
        return calls


def shortest_delay(minted: Iterable[tokens.Minted]) -> int:
    """Returns the ms of the shortest delay among these tokens; 0 = none is delayed."""
    return min((delay for _, flat in minted for delay in flat[2::3] if delay), default=0)


def dispatch(unit: Unit, returned: FollowUps) -> Operation[None]:
    """Sends the calls of `returned`, if there are any."""
    if calls := returned.calls():
        yield from send(unit, calls)


def send(unit: Unit, calls: Sequence[Command | Call]) -> Operation[None]:
    """Sends calls. Those for an unreachable shard are kept, and do not delay the others."""
    if unit.turns.is_one:
        yield Batch(calls)
        return
    replies = yield from ask_all(Batch(calls, lenient=True, away_s=settings.SHARD_AWAY_S))
    keep_unsent(unit, calls, replies)
    if refused := refusals(replies):
        raise refused[0]


def ask_all(batch: Batch) -> Operation[Sequence[Any]]:
    """Returns the replies to a lenient batch, also if none of its nodes answers."""
    try:
        replies: Sequence[Any] = yield batch
    except NodeAway as error:
        return [error] * len(batch.steps)
    return replies


def keep_unsent(unit: Unit, calls: Iterable[Command | Call], replies: Iterable[Any]) -> None:
    """Keeps, for a later batch, the calls whose node is unreachable."""
    pairs = zip(calls, replies, strict=True)
    unit.unsent += [call for call, reply in pairs if isinstance(reply, NodeAway)]
    del unit.unsent[:-_KEPT]


def refusals(replies: Iterable[Any]) -> list[FairlaneError]:
    """Returns the errors of calls that a later batch need not repeat."""
    errors = (reply for reply in replies if isinstance(reply, FairlaneError))
    return [error for error in errors if not isinstance(error, NodeAway)]


def log_refusals(replies: Iterable[Any]) -> None:
    """Logs dispatches that failed beside a pop or an acquire, whose own tokens must not be lost."""
    for error in refusals(replies):
        _log.warning("could not dispatch what a reply asked for: %s", error)


def put_off(unit: Unit, token: Token, lane: bytes, error: NodeAway) -> tokens.Minted:
    """Returns the entry that dispatches a token later, because its request's node is unreachable.

    `lane` is the key of the list that the token came from.
    """
    note_away(unit, f"put off a token of request {token.request_id}", error)
    delay = min(_MOST_MS, max(_LEAST_MS, int(error.away_s * 1000)))
    return token.request_id, [b"%d" % keys.number_of(lane), token.permit.encode(), delay]


def note_away(unit: Unit, what: str, error: NodeAway) -> None:
    """Logs what happens because a node is unreachable; not each time, as that may be very often."""
    now = clock.mono_s()
    if now >= unit.quiet_until:
        unit.quiet_until = now + _QUIET_S
        _log.warning("%s: %s", what, error)
