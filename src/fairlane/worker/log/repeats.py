"""Logs what fails again and again during an outage, but not each time."""

from __future__ import annotations

import logging
import threading

from fairlane.common import clock

_log = logging.getLogger("fairlane.worker")
_QUIET_S = 30.0  # between two lines about one outage
_MOST = 100  # texts that are remembered; a text may name a request, so there may be very many


class Repeats:
    """Logs a text that was logged in this outage only when 30 s have passed since then.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._changed = threading.Lock()

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
        """Notes the end of the outage: the next failure belongs to another one."""
        with self._changed:
            self._until.clear()
