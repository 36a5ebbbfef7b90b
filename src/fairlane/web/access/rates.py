"""How often a caller may call: at most so many calls in a time, with a burst (GCRA).

The times are in the memory of one server: several servers allow several times as much.
"""

from __future__ import annotations

from collections import OrderedDict

from fairlane.common.rate import rate_of

_EXACT_S = 1e-6  # sums of fractions are not exact
MOST_CALLERS = 10_000  # the one that has not called for the longest time is forgotten


class CallRates:
    """The calls of each caller, at most `rate`, as 100/s, and `burst` of them together.

    The burst is by default what the rate allows in a second. Raises InvalidArgument.
    """

    def __init__(self, rate: str, burst: int | None = None) -> None:
        self._interval_s = rate_of(rate, burst).interval_us / 1e6
        most = max(1, int(1 / self._interval_s)) if burst is None else burst
        self._tolerance_s = self._interval_s * (most - 1)
        # When the last call would have come at the exact rate; the latest caller is last.
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, caller: str, now_s: float, cost: float = 1.0) -> float:
        """Counts a call and returns 0.0; or returns after how many seconds it may be repeated.

        `cost`: as how many calls it counts.
        """
        due = max(now_s, self._due.get(caller, now_s))
        early_s = due - now_s - self._tolerance_s
        if early_s > _EXACT_S:
            return early_s
        self._due[caller] = due + cost * self._interval_s
        self._due.move_to_end(caller)
        if len(self._due) > MOST_CALLERS:
            self._due.popitem(last=False)
        return 0.0

    def __len__(self) -> int:
        return len(self._due)
