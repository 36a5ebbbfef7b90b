"""How many sub-requests a slice should cover: sized in time, measured per request."""

from __future__ import annotations

from collections import OrderedDict

from fairlane.settings import SLICE_MOST

_REMEMBERED = 256
_WEIGHT = 0.3  # of the newest slice in the moving average
_GROWTH = 16  # a slice is at most this much longer than the one before
_OVER = 0.15  # of a call: two of 10.5 ms are nearer to 20 ms than one
_SLOW = 32  # a handler is slow when a slice's time is less than so many of its calls


class SliceSizer:
    """A moving average of time per sub-request, for the requests seen last; starts at 1."""

    def __init__(self, slice_ms: float) -> None:
        self._target = slice_ms / 1000
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def knows(self, request_id: str) -> bool:
        """True when it was measured."""
        return request_id in self._seen

    def next(self, request_id: str, share: float = 1.0) -> int:
        """The size to ask for now, 1..1000, for this share of the slice time; of 0 it is 1."""
        seen = self._seen.get(request_id)
        if seen is None or self._target <= 0:
            return 1
        each, last = seen
        fitting = int(self._target * share / each + _OVER) if each > 0 else SLICE_MOST
        return max(1, min(fitting, last * _GROWTH, SLICE_MOST))

    def potential_seconds(
        self, asked: int, count: int, waiting: int, seconds: float, most_s: float
    ) -> float:
        """Seconds that a token could fill whose slice of `count` took `seconds`.

        One that got all it had `asked` for, while more were `waiting`, was short because others
        shared the time, or for want of experience: it could go on for `most_s`. Else tokens of one
        large request would get ever shorter slices, the more of them are taken at once.
        """
        if self._target <= 0 or not waiting or not 0 < asked <= count:
            return seconds
        each = seconds / count
        most_s = self._target if each * _SLOW > self._target else min(most_s, self._target)
        return max(each, min(most_s, each * min(count + waiting, SLICE_MOST)))

    def observe(self, request_id: str, count: int, seconds: float) -> None:
        """`count` sub-requests took the handler `seconds`."""
        if count < 1:
            return
        each = seconds / count
        seen = self._seen.pop(request_id, None)
        if seen is not None:
            each = _WEIGHT * each + (1 - _WEIGHT) * seen[0] if each < seen[0] else each
        self._seen[request_id] = (each, count)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
