"""The exceptions that end a call of a handler, and what they make of its sub-request."""

from __future__ import annotations

from math import inf
from threading import Lock

from fairlane.common.text import exact
from fairlane.errors import InvalidArgument

LONGEST_S = 86_400


class Retry(Exception):
    """Raised by a handler to be called again. It counts as an attempt.

    After the last attempt the sub-request is dead. `after` is the pause in seconds, 0 to a day;
    None uses the request's backoff. `reason` is kept as the error's text. With `whole_request` the
    pause holds for all sub-requests of the request, and of the requests that share its rate key:
    use it if the service that the handler calls asks for a pause (HTTP 429). Raises
    InvalidArgument.
    """

    after: float | None = None
    reason: str = ""
    whole_request: bool = False

    def __init__(
        self, after: float | None = None, reason: str = "", *, whole_request: bool = False
    ) -> None:
        super().__init__(after, reason)
        if after is not None and not is_seconds(after):
            raise InvalidArgument(
                f"Retry(after={after!r}) is not valid: seconds from 0 to 86,400 are expected"
            )
        if not isinstance(reason, str):
            raise InvalidArgument(f"Retry(reason={reason!r}) is not valid: text is expected")
        if whole_request and not after:
            raise InvalidArgument(
                "Retry(whole_request=True) needs a pause: give after, in seconds from 0.001"
            )
        self.after, self.reason, self.whole_request = after, reason, whole_request

    def __str__(self) -> str:
        return self.reason or "the handler asked to be called again"


class Reject(Exception):
    """Raised by a handler to make the sub-request dead, however many attempts are left.

    `reason` is kept as the error's text. Raises InvalidArgument.
    """

    reason: str = ""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidArgument(f"Reject({reason!r}) is not valid: a reason is expected, as text")
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler rejected it"


class GiveBack(Exception):
    """Raised by a handler that cannot run its sub-request here: gives it back, uncharged.

    The sub-request is not delivered again before `after` seconds. `reason` is shown by `status`.
    If one process has given it back for `longest_s` seconds, the sub-request becomes dead with the
    error text `at_last`.
    """

    def __init__(
        self, reason: str, after: float, longest_s: float = inf, at_last: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason, self.after = reason, after
        self.longest_s, self.at_last = longest_s, at_last


class GiveBackTimes:
    """Since when this process gives back each sub-request.

    A sub-request that was not given back for an hour is dropped: another worker has taken it.
    """

    MAX_ENTRIES, FORGET_S = 20_000, 3_600.0

    def __init__(self) -> None:
        self._lock = Lock()  # threads of a process share it
        # The first and the last time, the oldest last time first.
        self._times: dict[tuple[str, bytes], tuple[float, float]] = {}

    def note(self, key: tuple[str, bytes], longest_s: float, now_s: float) -> bool:
        """Notes that a sub-request is given back; returns True if that must end now."""
        with self._lock:
            self._drop_old(now_s)
            first, _ = self._times.pop(key, (now_s, now_s))
            if now_s - first >= longest_s:
                return True
            if len(self._times) < self.MAX_ENTRIES:
                self._times[key] = first, now_s
            return False

    def _drop_old(self, now_s: float) -> None:
        while self._times:
            oldest = next(iter(self._times))
            if now_s - self._times[oldest][1] <= self.FORGET_S:
                return
            del self._times[oldest]


class TimedOut(Exception):
    """Raised by the runner: a call took longer than it may."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(too_long(limit_s))
        self.limit_s = limit_s


def killed_by(name: str) -> str:
    """Returns the error's text for a call that a person has ended."""
    return f"killed by {name or 'a person'}"


def too_long(limit_s: float) -> str:
    """Returns the error's text for a handler that was stopped."""
    return f"the handler took longer than its time limit of {exact(limit_s)} s"


def is_seconds(value: object) -> bool:
    """Returns True for a number of seconds from 0 to a day."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value <= LONGEST_S  # type: ignore[operator]
