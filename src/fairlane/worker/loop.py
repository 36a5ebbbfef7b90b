"""The worker's loop, without I/O: pop -> acquire -> handle -> complete -> dispatch, and again."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import clock, settings
from ..errors import FairlaneError
from ..operations import tokens
from ..operations.durable import confirm_settled
from ..operations.work import acquire, complete, new_op
from ..steps import Arg, Batch, Call, Command, Handle, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model import Slice, Token, Verdict
    from .board import Record
    from .measures import Measures
    from .slices import SliceSizes

_log = logging.getLogger("fairlane.worker")
_USED_UP = 0.9  # of a lease when its grant arrives: too late to begin anything


@dataclass(slots=True)
class Outcome:
    """What a run of the handler over (a part of) a slice came to."""

    position: int  # of the first entry not handled
    seconds: float = 0.0
    ids: list[bytes] = field(default_factory=list)
    results: list[Arg] = field(default_factory=list)  # (head, body) pairs, flat
    verdicts: list[Verdict] = field(default_factory=list)
    is_over: bool = False  # stop here and give the rest back
    timeouts: int = 0  # calls whose time ran out
    waited_ms: list[int] = field(default_factory=list)  # of each result
    ran_us: list[int] = field(default_factory=list)

    def parts(self) -> Iterator[tuple[list[bytes], list[Arg], list[Verdict]]]:
        """What is to be settled, in calls of bounded size; at least one."""
        first = size = 0
        for i in range(len(self.ids)):
            size += len(self.results[2 * i + 1])  # type: ignore[arg-type]
            if size > settings.FLUSH_BYTES:
                yield self.ids[first : i + 1], self.results[2 * first : 2 * i + 2], []
                first, size = i + 1, 0
        yield self.ids[first:], self.results[2 * first :], self.verdicts


@dataclass(slots=True)
class Unit:
    """One thread or task of a worker: it holds at most one lease."""

    queue: str
    worker: str
    started: str
    record: Record
    sizes: SliceSizes
    measures: Measures


def serve(unit: Unit) -> Operation[None]:
    """Works until the worker drains."""
    outgoing: list[Command | Call] = []
    while not unit.record.is_draining:
        # What the last slice returned goes out in the same round trip as the next pop.
        outgoing += unit.measures.due()
        *_, popped = yield Batch(
            [*outgoing, tokens.pop(unit.queue, settings.BLOCK_MS, unit.worker)]
        )
        outgoing = []
        token = tokens.parse(popped[1]) if popped else None
        if token is not None:
            outgoing = yield from use(unit, token)
    outgoing += unit.measures.rest()
    if outgoing:
        yield Batch(outgoing)


def use(unit: Unit, token: Token) -> Operation[list[Command | Call]]:
    """One token: its slice, worked on and settled; returns what is to be dispatched."""
    sent, op = clock.mono_s(), new_op()
    # Should this process die with the answer on its way, the supervisor asks again.
    unit.record.want(token, op)
    word, taken, rest = yield from acquire(
        token, unit.worker, unit.started, unit.sizes.next(token.request_id), op=op
    )
    if taken is not None:
        _hold(unit, taken, sent)
    unit.record.unwant()
    if word == "ended":
        return [tokens.retire(unit.queue, token.request_id, rest)]
    outgoing: list[Command | Call] = [*tokens.insert(unit.queue, token.request_id, rest)]
    if taken is None:
        return outgoing
    try:
        if outgoing:  # before anything else, above all before the handler
            yield Batch(outgoing)
        if clock.mono_s() - sent > taken.lease_ms / 1000 * _USED_UP:
            reply = yield complete(taken, [], [], [], keep=False)
            outgoing = _after(unit, taken, reply)
        else:
            outgoing = yield from work_off(unit, taken)
    except FairlaneError:  # Redis is away: the lease expires, and whoever leads takes it back
        unit.record.release()
        raise
    # Anything else that is raised ends the process, and the supervisor takes back what is held.
    unit.record.release()
    return outgoing


def _hold(unit: Unit, taken: Slice, sent: float) -> None:
    """Puts a lease on the board."""
    unit.record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000,
        int(taken.entries[0][0].partition(b"-")[2]) if len(taken.entries) == 1 else -1,
    )  # fmt: skip


def work_off(unit: Unit, taken: Slice) -> Operation[list[Command | Call]]:
    """Handles a slice and settles it, in parts when it takes long."""
    position, seconds, count = 0, 0.0, len(taken.entries)
    while True:
        outcome: Outcome = yield Handle(taken, position)
        seconds += outcome.seconds
        position = outcome.position
        keep = position < count and not outcome.is_over and seconds * 1000 < settings.SLICE_HARD_MS
        parts = list(outcome.parts())
        outgoing: list[Command | Call] = []
        for part in parts[:-1]:
            reply = yield from _settle(unit, taken, complete(taken, *part, keep=True))
            outgoing += _after(unit, taken, reply)
        reply = yield from _settle(unit, taken, complete(taken, *parts[-1], keep=keep))
        _count(unit, taken, outcome, reply[0], 0 if keep else 1)
        outgoing += _after(unit, taken, reply)
        if not keep or reply[0] != b"ok":
            break
        if outgoing:
            yield Batch(outgoing)
    unit.sizes.observe(taken.request_id, position, seconds)
    return outgoing


def _count(unit: Unit, taken: Slice, outcome: Outcome, word: bytes, slices: int) -> None:
    """What a run came to, for the board and the queue; what was refused was not settled by us."""
    is_settled = word in {b"ok", b"ended"}
    verdicts = [verdict.verdict for verdict in outcome.verdicts]
    rejected = verdicts.count("dead")
    failed = len(verdicts) - verdicts.count("release")
    again = failed - rejected if taken.attempt < taken.attempts else 0
    unit.record.count(
        done=len(outcome.ids) if is_settled else 0,
        failed=failed,
        slices=slices,
        busy_us=int(outcome.seconds * 1e6),
        retries=again if is_settled else 0,
        rejected=rejected if is_settled else 0,
        timeouts=outcome.timeouts,
        lost=1 if word == b"lost" else 0,
    )
    if is_settled:
        unit.measures.add(
            taken.priority, outcome.waited_ms, outcome.ran_us, failed, outcome.timeouts
        )


def _settle(unit: Unit, taken: Slice, call: Call) -> Operation[list[Any]]:
    """Settles, and for a durable request has it confirmed; what is not is said and counted."""
    if not taken.durable:
        settled: list[Any] = yield call
        return settled
    reply, missing = yield from confirm_settled(call, taken.request_id, taken.durable)
    if missing:
        unit.record.count(unconfirmed=1)
        _log.warning("request %s goes on, but %s", taken.request_id, missing)
    return reply


def _after(unit: Unit, taken: Slice, reply: list[Any]) -> list[Command | Call]:
    word = reply[0]
    if word == b"ended":
        return [tokens.retire(unit.queue, taken.request_id, reply[1])]
    if word in {b"ok", b"already"}:
        return [*tokens.insert(unit.queue, taken.request_id, reply[-1])]
    return []  # lost or gone: somebody else's now, and the result is discarded
