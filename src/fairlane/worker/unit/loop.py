"""The worker's loop, without I/O: pop -> acquire -> handle -> complete -> dispatch, and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import FairlaneError, NodeAway
from fairlane.operations.lease import tokens
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command, Operation, Pause
from fairlane.worker.unit.dispatch import ask_all, keep_unsent, log_refusals, note_away
from fairlane.worker.unit.lease_batch import FollowUps, fetch, work_bunch
from fairlane.worker.unit.pipeline import SHARE, may_stream, stream
from fairlane.worker.unit.single import use

if TYPE_CHECKING:
    from fairlane.protocol.steps import Popped
    from fairlane.worker.unit.unit import Unit


def serve(unit: Unit) -> Operation[None]:
    """Works until the worker drains."""
    outgoing: list[Command | Call] = []
    share = SHARE if unit.is_alone else 1.0
    while not unit.record.is_draining:
        # What the last slice returned goes out in the same round trip as the next pop.
        outgoing += unit.measures.due()
        most = unit.bunches.next(len(unit.free), share)
        popped = yield from _pop(unit, outgoing, most)
        outgoing = []
        if popped is not None:
            outgoing = yield from take(unit, popped, most)
        if unit.unsent:
            outgoing, unit.unsent = [*unit.unsent, *outgoing], []
    outgoing += unit.measures.rest()
    if outgoing:
        yield Batch(outgoing)


def _pop(unit: Unit, outgoing: list[Command | Call], most: int) -> Operation[Popped | None]:
    """Dispatches these steps, and pops up to `most` tokens in the same round trip.

    A queue's own lanes are waited for. If one of several shards is away, the next one has its turn.
    """
    steps = [*outgoing, unit.turns.next(most)]
    popped: Popped | None
    if unit.turns.is_one:
        *_, popped = yield Batch(steps)
        unit.turns.came(popped)
        return popped
    replies = yield from ask_all(Batch(steps, lenient=True, away_s=settings.SHARD_AWAY_S))
    keep_unsent(unit, outgoing, replies[:-1])
    log_refusals(replies[:-1])
    reply = replies[-1]
    if isinstance(reply, NodeAway):
        note_away(unit, f"a shard of queue {unit.queue} is away", reply)
        yield Pause(unit.turns.failed())
        return None
    if isinstance(reply, FairlaneError):
        raise reply
    popped = reply
    unit.turns.came(popped)
    return popped


def take(unit: Unit, popped: Popped, most: int) -> Operation[list[Command | Call]]:
    """Works on what a pop of up to `most` tokens brought; what is to be dispatched."""
    raw = popped.tokens
    first = tokens.parse(raw[0])
    if first is None and keys.is_wake(popped.lane):
        return _wake_others(popped)
    # As many as were wanted: there may be more, so it is worth while to fetch ahead.
    may_be_more = unit.is_alone and unit.bunches.is_quick and len(raw) == most > 1
    if len(raw) == 1 and not may_be_more:
        return [] if first is None else (yield from use(unit, first, popped.lane))
    returned = FollowUps(unit.queue, popped.lane)
    fetched = yield from fetch(unit, raw, returned, SHARE if may_be_more else 1.0)
    if may_be_more and may_stream(unit, fetched):
        return (yield from stream(unit, fetched))
    return (yield from work_bunch(unit, fetched, []))


def _wake_others(popped: Popped) -> list[Command | Call]:
    """The worker drains, and one word a unit was pushed: those that came to us are put back."""
    return [*tokens.push(popped.lane, popped.tokens[1:], 2 * settings.BLOCK_MS)]
