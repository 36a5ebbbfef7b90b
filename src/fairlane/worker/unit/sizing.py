"""How much a unit should take: sized in time, measured by its process.

A slice is sized by the time per sub-request of its request, a pop by the time per token.
"""

from __future__ import annotations

from collections import OrderedDict

from fairlane import settings
from fairlane.settings import SLICE_MOST

_REMEMBERED = 256  # requests
_WEIGHT = 0.3  # of the newest measurement in the moving averages
_GROWTH = 16  # a slice is at most this many times the one before
_TOKEN_GROWTH = 4  # ... and so many tokens the ones before
_OVER = 0.15  # of a call: two of 10.5 ms are nearer to 20 ms than one
_SLOW = 32  # a handler is slow when a slice's time is less than so many of its calls
_MOST_BYTES = 4 << 20  # of the bodies of one pop's leases, about


class Sizer:
    """Moving averages of time per sub-request and per token; all sizes start at 1.

    `slice_ms` is how long the handler should take for a pop's leases. With 0 each slice is one
    sub-request, and pops have the default. A pop takes at most `most` tokens.
    """

    def __init__(self, slice_ms: float = settings.SLICE_MS, most: int = 1) -> None:
        self.slice_s = (slice_ms or settings.SLICE_MS) / 1000
        self.most = most
        self._target = slice_ms / 1000
        self._requests: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._token_s = -1.0  # not known
        self._token_bytes = 0.0
        self._last = 1
        self._singly = 0

    # Sub-requests of a slice.

    def has_measured(self, request_id: str) -> bool:
        """Returns True if this request was measured."""
        return request_id in self._requests

    def entries(self, request_id: str, share: float = 1.0) -> int:
        """Returns the entries to ask for now, 1..1000, for this share of the slice time."""
        measured = self._requests.get(request_id)
        if measured is None or self._target <= 0:
            return 1
        each, last = measured
        fitting = int(self._target * share / each + _OVER) if each > 0 else SLICE_MOST
        return max(1, min(fitting, last * _GROWTH, SLICE_MOST))

    def sizes(self, share: float = 1.0) -> list[tuple[str, int]]:
        """Returns the requests of which more than one entry should be taken, and how many.

        All of them: the requests of a lane take turns, so the next one is the one measured longest
        ago.
        """
        known = list(self._requests)  # a copy: other threads measure meanwhile
        found = [(request_id, self.entries(request_id, share)) for request_id in known]
        return [(request_id, entries) for request_id, entries in found if entries > 1]

    def forget(self, request_id: str) -> None:
        """Removes a request that has ended."""
        self._requests.pop(request_id, None)

    def observe_slice(self, request_id: str, count: int, seconds: float) -> None:
        """Learns that `count` sub-requests took the handler `seconds`."""
        if count < 1:
            return
        each = seconds / count
        measured = self._requests.pop(request_id, None)
        if measured is not None:
            each = _average(measured[0], each)
        self._requests[request_id] = (each, count)
        if len(self._requests) > _REMEMBERED:
            self._requests.popitem(last=False)

    def potential_seconds(
        self, asked: int, count: int, waiting: int, seconds: float, most_s: float
    ) -> float:
        """Returns how long a token could keep the handler busy whose slice took `seconds`.

        A slice may be short although it got all entries that it had `asked` for, and more were
        `waiting`: other leases shared the time, or the pace was unknown. Then its token could keep
        the handler busy for up to `most_s`. Without this rule, the tokens of one large request
        would get ever shorter slices, the more of them one pop takes.
        """
        if self._target <= 0 or not waiting or not 0 < asked <= count:
            return seconds
        each = seconds / count
        most_s = self._target if each * _SLOW > self._target else min(most_s, self._target)
        return max(each, min(most_s, each * min(count + waiting, SLICE_MOST)))

    # Tokens of a pop.

    def take_singly(self, count: int) -> None:
        """Makes the next `count` pops take one token each."""
        self._singly = max(self._singly, min(count, self.most))

    def tokens(self, room: int, share: float = 1.0) -> int:
        """Returns the tokens to pop now, 1..`room`, for this share of the slice time."""
        if self._singly > 0 or self._token_s < 0:
            self._singly = max(0, self._singly - 1)
            return 1
        return self._fitting(room, share)

    def _fitting(self, room: int, share: float) -> int:
        fitting = self.most
        if self._token_s * self.most > self.slice_s * share:
            fitting = int(self.slice_s * share / self._token_s)
        if self._token_bytes * fitting > _MOST_BYTES:
            fitting = int(_MOST_BYTES / self._token_bytes)
        return max(1, min(fitting, self._last * _TOKEN_GROWTH, self.most, room))

    @property
    def is_quick(self) -> bool:
        """Returns True if the last tokens took the handler less than a slice's time each."""
        return 0 <= self._token_s < self.slice_s

    def observe_tokens(self, count: int, seconds: float, size: int = 0) -> None:
        """Learns that `count` tokens took the handler `seconds`; their bodies had `size` bytes."""
        if count < 1:
            return
        self._token_s = _average(self._token_s, seconds / count)
        self._token_bytes = _average(self._token_bytes, size / count)
        self._last = count


def _average(before: float, now: float) -> float:
    """Returns the moving average; a longer time counts in full, so no size is too large twice."""
    return now if now >= before else _WEIGHT * now + (1 - _WEIGHT) * before
