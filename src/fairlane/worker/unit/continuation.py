"""A lease that goes on: settled, and its permit's next slice taken, in one round trip.

Only where one server has all keys, and only if nobody else's turn has come: the script looks at the
lanes. For handlers that are slow enough to take tokens one by one; quick ones share round trips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.errors import RedisUnfit
from fairlane.operations.lease import tokens
from fairlane.operations.lease.leases import (
    complete,
    complete_and_acquire,
    going_on,
    new_op,
    parse_acquired,
)
from fairlane.worker.unit.settle import while_held
from fairlane.worker.unit.unit import hold

if TYPE_CHECKING:
    from fairlane.model import Slice
    from fairlane.operations.lease.leases import Part
    from fairlane.protocol.steps import Call, Command, Operation
    from fairlane.worker.unit.unit import Unit


@dataclass(slots=True)
class AcquiredSlice:
    """A slice that stands on the board: of at most `asked` entries, asked for at `sent`."""

    slice: Slice
    asked: int
    sent: float


class Continuation:
    """How one lease of a unit is settled, whose token came from the list `lane`."""

    def __init__(self, unit: Unit, lane: bytes) -> None:
        self._unit, self._lane = unit, lane
        self.next: AcquiredSlice | None = None  # what it went on with
        self.outgoing: list[Command | Call] = []  # what that asks to dispatch

    def is_likely(self, taken: Slice) -> bool:
        """True when there will be a next slice, and it would have been taken by itself, too.

        What is durable has each slice confirmed before the next.
        """
        unit = self._unit
        return (
            bool(self._lane and taken.waiting and unit.at_once)
            and not taken.durable
            and not unit.record.is_draining
            and unit.turns.is_one
            and unit.bunches.takes_one(len(unit.free))
        )

    def settle(self, taken: Slice, part: Part) -> Operation[list[Any]]:
        """What complete says; `next` is the next slice, if there is one."""
        unit = self._unit
        sent, op, asked = clock.mono_s(), new_op(), unit.sizes.next(taken.request_id)
        # Should this process die with the answer on its way, the supervisor asks again.
        unit.record.begin_acquire(going_on(taken), op)
        try:
            told = yield complete_and_acquire(
                taken, part, self._lane, op, unit.worker, unit.started, asked
            )
        except RedisUnfit:  # it may not read the lanes, or one of them is no list: nothing was done
            told = None
        if told is None:  # or a cluster: nothing was asked
            unit.record.end_acquire()
            unit.at_once = False
            call = while_held(complete(taken, *part, keep=False), unit.record)
            reply: list[Any] = yield call
            return reply
        if len(told) > 1:
            self._note(taken, op, told[1], asked, sent)
        unit.record.end_acquire()
        reply = told[0]
        return reply

    def _note(self, taken: Slice, op: bytes, told: list[Any], asked: int, sent: float) -> None:
        """What acquire said."""
        unit = self._unit
        _, following, rest = parse_acquired(going_on(taken), op, told)
        if following is not None:
            unit.record.release()  # half of one lease and half of another would be neither's
            hold(unit.record, following, sent)
            self.next = AcquiredSlice(following, asked, sent)
        self.outgoing = [*tokens.insert(unit.queue, taken.request_id, rest)]
