"""The worker's loop, without I/O: pop -> acquire -> handle -> complete -> dispatch, and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import clock, settings
from ..operations import tokens
from ..operations.work import acquire, complete
from ..steps import Arg, Batch, Call, Command, Handle, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model import Slice, Token, Verdict
    from .board import Record
    from .slices import SliceSizes


@dataclass(slots=True)
class Outcome:
    """What a run of the handler over (a part of) a slice came to."""

    position: int  # of the first entry not handled
    seconds: float = 0.0
    ids: list[bytes] = field(default_factory=list)
    results: list[Arg] = field(default_factory=list)  # (head, body) pairs, flat
    verdicts: list[Verdict] = field(default_factory=list)
    is_over: bool = False  # stop here and give the rest back

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


def serve(unit: Unit) -> Operation[None]:
    """Works until the worker drains."""
    outgoing: list[Command | Call] = []
    while not unit.record.is_draining:
        # What the last slice returned goes out in the same round trip as the next pop.
        *_, popped = yield Batch(
            [*outgoing, tokens.pop(unit.queue, settings.BLOCK_MS, unit.worker)]
        )
        outgoing = []
        token = tokens.parse(popped[1]) if popped else None
        if token is not None:
            outgoing = yield from use(unit, token)
    if outgoing:
        yield Batch(outgoing)


def use(unit: Unit, token: Token) -> Operation[list[Command | Call]]:
    """One token: its slice, worked on and settled; returns what is to be dispatched."""
    sent = clock.mono_s()
    word, taken, rest = yield from acquire(
        token, unit.worker, unit.started, unit.sizes.next(token.request_id)
    )
    if word == "ended":
        return [tokens.retire(unit.queue, token.request_id, rest)]
    outgoing: list[Command | Call] = [*tokens.insert(unit.queue, token.request_id, rest)]
    if taken is None:
        return outgoing
    unit.record.hold(
        taken.request_id, taken.k, int(taken.fence), taken.op, sent, taken.lease_ms / 1000
    )
    try:
        if outgoing:  # before anything else, above all before the handler
            yield Batch(outgoing)
        return (yield from work_off(unit, taken))
    finally:
        unit.record.release()


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
            outgoing += _after(unit, taken, (yield complete(taken, *part, keep=True)))
        reply = yield complete(taken, *parts[-1], keep=keep)
        counted = len(outcome.ids) if reply[0] in {b"ok", b"ended"} else 0
        failed = len(outcome.verdicts)
        unit.record.count(counted, failed, 0 if keep else 1, int(outcome.seconds * 1e6))
        outgoing += _after(unit, taken, reply)
        if not keep or reply[0] != b"ok":
            break
        if outgoing:
            yield Batch(outgoing)
    unit.sizes.observe(taken.request_id, position, seconds)
    return outgoing


def _after(unit: Unit, taken: Slice, reply: list[Any]) -> list[Command | Call]:
    word = reply[0]
    if word == b"ended":
        return [tokens.retire(unit.queue, taken.request_id, reply[1])]
    if word in {b"ok", b"already"}:
        return [*tokens.insert(unit.queue, taken.request_id, reply[-1])]
    return []  # lost or gone: somebody else's now, and the result is discarded
