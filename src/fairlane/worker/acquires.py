"""The acquires of a unit that have no answer, in its record of the shared page.

Redis may grant such an acquire, and only the unit has its op. So the supervisor can ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mmap

    from ..model import Token

# The acquire that was sent and not answered: the length of "<id>#<k>.<g>", which follows the op.
_AT_WANTED, _AT_OP, _OP, _TOKEN_MOST = 504, 505, 32, 168
AT_LEFT = _AT_OP + _OP + _TOKEN_MOST  # the same of one that was given up


class Acquires:
    """The part of a record, which begins at `at`, that these acquires are noted in."""

    def __init__(self, page: mmap.mmap, at: int) -> None:
        self._page, self._at = page, at

    def want(self, token: Token, op: bytes) -> None:
        """An acquire goes out: if the process dies now, no other process has its reply.

        A token that is longer than any of ours is not for us, and not noted.
        """
        at = self._at + _AT_OP
        shown = op + token.text.encode()
        if len(shown) <= _OP + _TOKEN_MOST:
            self._page[at : at + len(shown)] = shown
            self._page[self._at + _AT_WANTED] = len(shown) - _OP

    def unwant(self, *, is_left: bool = False) -> None:
        """It was answered, and what it brought is on the board. `is_left`: or it was given up.

        Its node may grant it later. The supervisor asks again, for one such acquire of a record.
        """
        page, at, left = self._page, self._at + _AT_WANTED, self._at + AT_LEFT
        if is_left and not page[left]:
            size = 1 + _OP + page[at]
            page[left + 1 : left + size] = page[at + 1 : at + size]
            page[left] = page[at]  # the last: the supervisor reads the rest after it
        page[at] = 0

    def wanted(self) -> tuple[bytes, bytes] | None:
        """The token and the op of an acquire without an answer; only of a process that is dead."""
        return self._acquire_at(self._at + _AT_WANTED)

    def left(self) -> tuple[bytes, bytes] | None:
        """Returns the same of an acquire that was given up, until `leave`."""
        return self._acquire_at(self._at + AT_LEFT)

    def leave(self) -> None:
        """Makes room for the next acquire that is given up."""
        self._page[self._at + AT_LEFT] = 0

    def _acquire_at(self, at: int) -> tuple[bytes, bytes] | None:
        length, op = self._page[at], at + 1
        if not length:
            return None
        return self._page[op + _OP : op + _OP + length], self._page[op : op + _OP]
