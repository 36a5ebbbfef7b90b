"""How often a caller may call: at most so many calls in a time, with a burst (GCRA).

The times are in the memory of one server: several servers allow several times as much.
"""

from __future__ import annotations

from collections import OrderedDict

from fairlane.common.rate import rate_of

_EXACT_S = 1e-6  # sums of fractions are not exact
MOST_CALLERS = 10_000  # with a count of their own
_LOOKS = 4  # at each call: so many callers whose count may be over
_OTHERS = ""  # the count of all callers for whom there is no place


class CallRates:
    """The calls of each caller, at most `rate`, as 100/s, and `burst` of them together.

    The burst is by default what the rate allows in a second. A count is forgotten when it is over,
    never earlier, whatever number of addresses a caller has. If there are too many counts, further
    callers share one. Raises InvalidArgument.
    """

    def __init__(self, rate: str, burst: int | None = None) -> None:
        self._interval_s = rate_of(rate, burst).interval_us / 1e6
        most = max(1, int(1 / self._interval_s)) if burst is None else burst
        self._tolerance_s = self._interval_s * (most - 1)
        # When the last call would have come at the exact rate; a time that is over says nothing.
        self._due: OrderedDict[str, float] = OrderedDict()

    def wait_s(
        self, caller: str, now_s: float, cost: float = 1.0, *, is_known: bool = False
    ) -> float:
        """Counts a call and returns 0.0; or returns after how many seconds it may be repeated.

        `cost`: as how many calls it counts. A caller that `is_known`, as by a token, always has a
        count of its own.
        """
        self._forget(now_s)
        if not is_known and caller not in self._due and len(self._due) >= MOST_CALLERS:
            caller = _OTHERS
        due = max(now_s, self._due.get(caller, now_s))
        early_s = due - now_s - self._tolerance_s
        if early_s > _EXACT_S:
            return early_s
        self._due[caller] = due + cost * self._interval_s
        return 0.0

    def _forget(self, now_s: float) -> None:
        """Looks at a few counts, each in its turn, and forgets those that are over."""
        for _ in range(min(_LOOKS, len(self._due))):
            caller, due = self._due.popitem(last=False)
            if due > now_s:
                self._due[caller] = due

    def __len__(self) -> int:
        return len(self._due)
