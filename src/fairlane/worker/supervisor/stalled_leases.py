"""Takes from a slow call what is beside it: results that are made, and work that has not begun.

A unit takes several sub-requests, or several leases, only while its handler is quick. But the next
body may take long, and another worker may be idle. The process of a slow call may be unable to send
anything, so the supervisor does: it reads the journal of the unit.

A mark on the board comes first: a unit begins no call that the mark forbids. It notes each outcome
before it reads the mark. So at the next look the journal shows which call runs, and no later one
can begin. What both send, Redis counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.model import Verdict
from fairlane.operations.lease import settle_part

if TYPE_CHECKING:
    from fairlane.protocol.steps import Call
    from fairlane.worker.held import Held
    from fairlane.worker.journal import Worked
    from fairlane.worker.lease_board import LeaseBoard
    from fairlane.worker.supervisor.lease_keeper import LeaseKeeper

LOOK_S = 0.02  # between two looks while a batch runs
_LONG_S = 0.04  # a batch that runs longer is slow, if slices take 20 ms
_SLICES = 2  # if slices are longer, a batch is slow after so many of them
_WAITS_S = 0.3  # a lease that waits for longer is stalled, whatever its unit does
_WAITS_SLICES = 5
_AGAIN_S = 1.0  # until Redis is tried again after a call failed


class StalledLeases:
    """The leases of one worker; its slices take `slice_ms`. `splits`: a call has one sub-request.

    A batch handler's call has the whole slice, so there is nothing to split.
    """

    def __init__(
        self, board: LeaseBoard, keeper: LeaseKeeper, slice_ms: float = 0, *, splits: bool = True
    ) -> None:
        self._board, self._keeper, self._splits = board, keeper, splits
        self._long_s = max(_LONG_S, _SLICES * slice_ms / 1000)
        self._waits_s = max(_WAITS_S, _WAITS_SLICES * slice_ms / 1000)
        self._marked: dict[int, float] = {}  # unit -> when its batch began that was marked
        self._relieved: dict[int, float] = {}  # ... and that holds nothing up any more
        self._again: dict[int, float] = {}  # unit -> when its batch is relieved again
        self._waiting: set[tuple[int, int]] = set()  # unit, version: those that must not begin
        self._given: set[tuple[int, int]] = set()  # ... and were given back

    @property
    def is_due(self) -> bool:
        """Returns True if a call has become slow; to be read every LOOK_S while a batch runs."""
        return bool(self._slow())

    def _slow(self) -> dict[int, float]:
        """Returns the units that a slow call keeps, until nothing is beside it."""
        now = clock.mono_s()
        return {
            unit: began
            for unit, began in self._board.long_batches(now - self._long_s).items()
            if self._relieved.get(unit) != began and self._again.get(unit, now) <= now
        }

    def look(self) -> None:
        """Marks what is beside a slow call, and takes it back at the next look."""
        for unit, began in self._slow().items():
            if self._marked.get(unit) == began:
                if self._relieve(unit):
                    self._relieved[unit] = began
                else:
                    self._again[unit] = clock.mono_s() + _AGAIN_S
            else:
                self._marked[unit] = began
                self._again.pop(unit, None)
                self._mark(unit)

    def _mark(self, unit: int) -> None:
        for record in self._board.of_unit(unit):
            held = record.held()
            if held is None:
                continue
            if held.waits:
                self._stop(held)
            elif held.has_its_turn and held.count > 1 and self._splits:
                record.split(held)

    def _relieve(self, unit: int) -> bool:
        """Settles what is done beside the call of a unit, and gives back what has not begun.

        Returns False if a call failed, so that it must be sent again: Redis counts once.
        """
        records = self._board.of_unit(unit)
        # The turns are read before the journal: a lease's last outcome is noted before its end.
        all_held = [held for record in records if (held := record.held())]
        is_done = self._give_back([held for held in all_held if held.waits])
        is_done &= self._keeper.unanswered.take_back_unread(records[0])
        journal = records[0].journal
        worked = journal.read() if journal is not None else {}
        settled: list[Held] = []
        calls: list[Call] = []
        indexes: list[tuple[Held, int]] = []  # what split leases have left
        for held in all_held:
            found = worked.get((held.unit, held.version))
            if found is None or held.waits:
                continue
            is_split = held.has_its_turn and self._board.records[held.unit].has_split(held)
            if is_split and found.count < len(found.ids):
                indexes.append((held, int(found.ids[found.count].partition(b"-")[2])))
            call = _part(held, found, is_split=is_split)
            if call is not None:
                settled.append(held)
                calls.append(call)
        left = self._keeper.settle(settled, calls)
        for held, index in indexes:
            if held not in left:
                self._board.records[held.unit].narrow(held, index)
        return is_done and not left

    def look_at_waiting(self) -> None:
        """Gives back leases that wait for long although no batch of their unit is slow.

        Another unit of their process may keep the interpreter lock. To be called less often.
        """
        now = clock.mono_s()
        all_held = self._board.held()
        late = [held for held in all_held if held.waits and now - held.taken > self._waits_s]
        self._waiting &= {(held.unit, held.version) for held in all_held if held.waits}
        self._given &= self._waiting
        self._give_back(late)
        for held in late:
            self._stop(held)

    def _stop(self, held: Held) -> None:
        self._waiting.add((held.unit, held.version))
        self._board.records[held.unit].stop(held)

    def _give_back(self, waiting: list[Held]) -> bool:
        """Gives back those of these leases that were marked at an earlier look.

        Returns False if a call failed: a later look tries again.
        """
        marked = self._waiting - self._given
        back = [held for held in waiting if (held.unit, held.version) in marked]
        left = self._keeper.give_back(back, is_dead=False) if back else []
        self._given |= {(held.unit, held.version) for held in back if held not in left}
        return not left


def _part(held: Held, worked: Worked, *, is_split: bool) -> Call | None:
    """Returns the call that settles the outcomes of a lease; None if it holds nothing up.

    A lease whose entries all have outcomes ends. Any other lease is still its unit's. Only of a
    lease that is split go back those that have not begun, because its unit begins none of them.
    """
    is_over = worked.count == len(worked.ids) and not held.has_its_turn
    late = worked.ids[worked.count + 1 :] if is_split else []
    verdicts = worked.verdicts + [Verdict(entry, "unbegun", 0, b"", "") for entry in late]
    if not (worked.done or verdicts):
        return None
    return settle_part(
        held.request_id, held.k, str(held.fence), held.op,
        worked.done, worked.results, verdicts, keep=not is_over,
    )  # fmt: skip
