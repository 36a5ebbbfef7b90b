"""Gives back the leases that wait in a process behind a handler that takes long all of a sudden.

A unit takes many tokens at once only when its handler was quick; but nobody knows what the next
body is, and another worker may be idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common import clock

if TYPE_CHECKING:
    from fairlane.worker.lease_board import LeaseBoard
    from fairlane.worker.supervisor.lease_keeper import LeaseKeeper

_LONG_S = 0.3  # for slices of 20 ms; a bunch takes about a slice
_SLICES = 5  # as long as so many longer ones


class StalledLeases:
    """Looks after the leases of one worker that were not begun; a slice of it takes `slice_ms`."""

    def __init__(self, board: LeaseBoard, keeper: LeaseKeeper, slice_ms: float = 0) -> None:
        self._board, self._keeper = board, keeper
        self._long_s = max(_LONG_S, _SLICES * slice_ms / 1000)
        self._told: set[tuple[int, int]] = set()  # unit, version: those that must not begin
        self._given: set[tuple[int, int]] = set()  # ... and were given back

    def look(self) -> None:
        """To be called often. What must not begin is said at one look, and done at the next.

        Whoever begins a lease writes that down and then reads what was said: so it is not given
        back while it runs.
        """
        now = clock.mono_s()
        late = [one for one in self._board.held() if one.waits and now - one.taken > self._long_s]
        names = {(one.unit, one.version) for one in late}
        back = [one for one in late if (one.unit, one.version) in self._told - self._given]
        self._told, self._given = names, self._given & names
        for one in late:
            self._board.records[one.unit].stop(one)
        if back:
            self._given |= {(one.unit, one.version) for one in back}
            self._keeper.give_back(back, is_dead=False)
