"""The exceptions by which a handler decides what becomes of its sub-request."""

from __future__ import annotations

from math import inf

from fairlane.common.text import exact
from fairlane.errors import InvalidArgument

LONGEST_S = 86_400


class Retry(Exception):
    """Raised by a handler to be called again. Counts as an attempt: after the last one it is dead.

    `after` is the pause in seconds, 0 to a day; None uses the request's backoff. `reason` is kept
    as the error's text. With `whole_request` the pause is for all sub-requests of the request, and
    of the requests that share its rate key: the other side has asked for it, as with HTTP's 429.
    Raises InvalidArgument.
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
    Once a process has given it back again and again for `longest_s`, it is dead of `at_last`.
    """

    def __init__(
        self, reason: str, after: float, longest_s: float = inf, at_last: str = ""
    ) -> None:
        super().__init__(reason)
        self.reason, self.after = reason, after
        self.longest_s, self.at_last = longest_s, at_last


class GivenBack:
    """What a process gives back again and again: which sub-request, and since when.

    It forgets one that did not come back for an hour: another worker has taken it.
    """

    MOST, FORGET_S = 20_000, 3_600.0

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bytes], tuple[float, float]] = {}  # first and last

    def is_over(self, key: tuple[str, bytes], longest_s: float, now_s: float) -> bool:
        """Notes that a sub-request is given back; returns True if that must end now."""
        first, last = self._seen.get(key, (now_s, now_s))
        if now_s - last > self.FORGET_S:
            first = now_s
        if now_s - first >= longest_s:
            self._seen.pop(key, None)
            return True
        if key in self._seen or self._has_room(now_s):
            self._seen[key] = first, now_s
        return False

    def _has_room(self, now_s: float) -> bool:
        if len(self._seen) >= self.MOST:
            old = [key for key, (_, last) in self._seen.items() if now_s - last > self.FORGET_S]
            for key in old:
                self._seen.pop(key, None)
        return len(self._seen) < self.MOST


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
