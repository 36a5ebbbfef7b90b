"""Logs a failure that repeats during an outage, but not each time."""

from __future__ import annotations

import logging
import threading

from fairlane.common import clock
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable

_log = logging.getLogger("fairlane.worker")
_QUIET_S = 30.0  # between two lines about one failure
_OUTAGE_QUIET_S = 60.0  # between two lines about one outage
_BACK_S = 2.0  # an outage is over when no call has failed for so long
_MOST = 100  # texts that are remembered; a text may name a request, so there may be very many


def is_redis_away(error: FairlaneError) -> bool:
    """Returns True if all of Redis is unreachable, not only one node: then all calls fail."""
    return isinstance(error, RedisUnreachable) and not isinstance(error, NodeAway)


class Outage:
    """Logs for a whole process that Redis does not answer, at most once a minute, and its end.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._next = self._failed = 0.0
        self._is_logged = False
        self._changed = threading.Lock()

    def failed(self, error: FairlaneError) -> None:
        """Logs that a call failed, unless that was logged a moment ago."""
        now = clock.mono_s()
        with self._changed:
            self._failed = now
            if now < self._next:
                return
            self._next, self._is_logged = now + _OUTAGE_QUIET_S, True
        _log.warning("%s; trying again", error)

    def answered(self) -> None:
        """Logs the end of an outage that was logged."""
        with self._changed:
            if not self._is_logged or clock.mono_s() < self._failed + _BACK_S:
                return
            self._is_logged = False
        _log.info("Redis answers again")


class Repeats:
    """Logs a text again in the same outage only if 30 s have passed since it was logged.

    If all of Redis is unreachable, `outage` logs that. Any thread may call it.
    """

    def __init__(self, outage: Outage | None = None) -> None:
        self.outage = outage or Outage()
        self._until: dict[str, float] = {}
        self._changed = threading.Lock()

    def failed(self, error: FairlaneError, what: str = "") -> None:
        """Logs the failure of a call that is tried again; `what` names the caller."""
        if is_redis_away(error):
            self.outage.failed(error)
        else:
            self.warn(f"{what}{error}; trying again")

    def warn(self, text: str) -> None:
        """Logs the text as a warning, unless it is a repeat."""
        now = clock.mono_s()
        with self._changed:
            if now < self._until.get(text, now):
                return
            if len(self._until) >= _MOST:
                self._until.clear()
            self._until[text] = now + _QUIET_S
        _log.warning("%s", text)

    def over(self) -> None:
        """Notes a success: the next failure belongs to another outage."""
        with self._changed:
            self._until.clear()
        self.outage.answered()
