"""How many tokens a unit should take at once: sized in time, measured by its process."""

from __future__ import annotations

from fairlane import settings

_WEIGHT = 0.3  # of the newest bunch in the moving averages
_GROWTH = 4  # a bunch is at most this many times the one before
_MOST_BYTES = 4 << 20  # of the bodies of one bunch, about


class TokenBudget:
    """A moving average of time and size per token; starts at 1.

    `slice_ms` is how long the handler should take for a bunch; 0, which stands for slices of one
    sub-request, leaves it at the default. `most` 1 turns bunches off.
    """

    def __init__(self, slice_ms: float = settings.SLICE_MS, most: int = 1) -> None:
        self.slice_s = (slice_ms or settings.SLICE_MS) / 1000
        self.most = most
        self._each_s = -1.0  # not known
        self._each_bytes = 0.0
        self._last = 1
        self._singly = 0

    def take_singly(self, count: int) -> None:
        """The next `count` pops shall take one token each."""
        self._singly = max(self._singly, min(count, self.most))

    def next(self, room: int, share: float = 1.0) -> int:
        """The number to ask for now: at least 1, at most `room`; for this share of the time."""
        if self._singly > 0 or self._each_s < 0:
            self._singly = max(0, self._singly - 1)
            return 1
        return self._fitting(room, share)

    def takes_one(self, room: int) -> bool:
        """True when one token fills the time, as far as is known."""
        return self._each_s >= 0 and self._fitting(room, 1.0) == 1

    def _fitting(self, room: int, share: float) -> int:
        fitting = self.most
        if self._each_s * self.most > self.slice_s * share:
            fitting = int(self.slice_s * share / self._each_s)
        if self._each_bytes * fitting > _MOST_BYTES:
            fitting = int(_MOST_BYTES / self._each_bytes)
        return max(1, min(fitting, self._last * _GROWTH, self.most, room))

    @property
    def is_quick(self) -> bool:
        """True when the last ones took the handler less than a slice's time each."""
        return 0 <= self._each_s < self.slice_s

    def observe(self, count: int, seconds: float, size: int = 0) -> None:
        """`count` tokens took the handler `seconds`, and had `size` bytes of bodies."""
        if count < 1:
            return
        self._each_s = _average(self._each_s, seconds / count)
        self._each_bytes = _average(self._each_bytes, size / count)
        self._last = count


def _average(before: float, now: float) -> float:
    """What is more counts in full, so that no bunch is far too long twice."""
    return now if now >= before else _WEIGHT * now + (1 - _WEIGHT) * before
