"""Gives back leases that wait in a process behind a handler that suddenly takes long.

A unit takes several leases only while its handler is quick. But the next body may take long, and
another worker may be idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common import clock

if TYPE_CHECKING:
    from fairlane.worker.lease_board import LeaseBoard
    from fairlane.worker.supervisor.lease_keeper import LeaseKeeper

_LONG_S = 0.3  # a lease that waits longer is stalled, if slices take 20 ms
_SLICES = 5  # if slices are longer, a lease is stalled after so many of them


class StalledLeases:
    """The leases of one worker that have not begun; its slices take `slice_ms`."""

    def __init__(self, board: LeaseBoard, keeper: LeaseKeeper, slice_ms: float = 0) -> None:
        self._board, self._keeper = board, keeper
        self._long_s = max(_LONG_S, _SLICES * slice_ms / 1000)
        self._marked: set[tuple[int, int]] = set()  # unit, version: those that must not begin
        self._given: set[tuple[int, int]] = set()  # ... and were given back

    def look(self) -> None:
        """Marks stalled leases as stopped, and returns them on the next pass; to be called often.

        A unit notes that a lease begins before it reads the mark, so a running lease is never
        returned.
        """
        now = clock.mono_s()
        all_held = self._board.held()
        late = [held for held in all_held if held.waits and now - held.taken > self._long_s]
        names = {(held.unit, held.version) for held in late}
        back = [held for held in late if (held.unit, held.version) in self._marked - self._given]
        self._marked, self._given = names, self._given & names
        for held in late:
            self._board.records[held.unit].stop(held)
        if back:
            self._given |= {(held.unit, held.version) for held in back}
            self._keeper.give_back(back, is_dead=False)
