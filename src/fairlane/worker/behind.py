"""Gives back the leases that wait in a process behind a handler that takes long all of a sudden.

A unit takes many tokens at once only when its handler was quick; but nobody knows what the next
body is, and another worker may be idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import clock

if TYPE_CHECKING:
    from .board import Board
    from .keeper import Keeper

_LONG_S = 0.3  # a bunch takes a tenth of it


class Behind:
    """Looks after the leases of one worker that were not begun."""

    def __init__(self, board: Board, keeper: Keeper) -> None:
        self._board, self._keeper = board, keeper
        self._told: set[tuple[int, int]] = set()  # unit, version: those that must not begin

    def look(self) -> None:
        """To be called often. What must not begin is said at one look, and done at the next.

        Whoever begins a lease writes that down and then reads what was said: so it is not given
        back while it runs.
        """
        now = clock.mono_s()
        late = [one for one in self._board.held() if one.waits and now - one.taken > _LONG_S]
        back = [one for one in late if (one.unit, one.version) in self._told]
        self._told = {(one.unit, one.version) for one in late} if late else set()
        for one in late:
            self._board.records[one.unit].stop(one)
        if back:
            self._keeper.give_back(back)
