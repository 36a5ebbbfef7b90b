"""A duty: work that is repeated when it is due, in its own thread."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.worker.log.repeats import Outage, Repeats

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("fairlane.worker")
NEVER = float("inf")


class Beat(NamedTuple):
    """The reply to a heartbeat: times of the server's clock in ms, 0 = nothing is due."""

    now_ms: int
    active_due: int
    delayed_due: int
    oldest_beat: int
    died_ms: int
    tick_due: int = 0

    def moment(self, due_ms: int) -> float:
        """Returns a time of the server's clock in seconds of clock.mono_s; NEVER for 0."""
        return clock.mono_s() + max(0, due_ms - self.now_ms) / 1000 if due_ms else NEVER


class Duty:
    """Runs `run` when it is due; the thread begins when the first time is set.

    `next_due` returns when a beat makes the duty due, in seconds of clock.mono_s. A beat may make
    it due sooner. If the duty `follows_beats`, a beat may also make it due later.

    `run` returns when the duty is due again; NEVER = at the next `due` or `set`. It must be safe to
    run twice. Its errors are logged and the thread goes on, because no other worker does this duty
    while this worker leads.
    """

    def __init__(
        self,
        name: str,
        next_due: Callable[[Beat], float],
        run: Callable[[], float],
        *,
        follows_beats: bool = False,
        outage: Outage | None = None,
    ) -> None:
        self.name = name
        self._next_due, self._work = next_due, run
        self._follows_beats = follows_beats
        self._repeats = Repeats(outage)
        self._at = NEVER
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def at(self) -> float:
        """Returns when the duty is due next, in seconds of clock.mono_s; NEVER if it is not."""
        return self._at

    def next(self, beat: Beat) -> None:
        """Sets when the duty is due by this beat."""
        at = self._next_due(beat)
        if self._follows_beats:
            self.set(at)
        else:
            self.due(at)

    def set(self, at: float) -> None:
        """Makes the duty due at this time, and at no other."""
        with self._changed:
            self._at = at
            if self._thread is None and at < NEVER and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def due(self, at: float) -> None:
        """Makes the duty due at this time, unless it is due earlier."""
        if at < self._at:
            self.set(at)

    def close(self) -> None:
        """Ends the thread; a call that runs now is finished first."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Waits for the end of the thread, for so many seconds at most."""
        if self._thread is not None:
            self._thread.join(max(0.0, seconds))

    def pause(self, seconds: float) -> bool:
        """Pauses the duty's `run` for this time; returns True if the duty was closed meanwhile."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, seconds)

    def _run(self) -> None:
        while self._wait():
            again = NEVER
            try:
                again = self._work()
                self._repeats.over()
            except FairlaneError as error:
                self._repeats.failed(error, f"{self.name}: ")
            except Exception:  # noqa: BLE001  this worker leads: no other one would go on
                _log.exception("%s failed; trying again", self.name)
            self.due(again)

    def _wait(self) -> bool:
        """Waits until the duty is due; returns False once it is closed."""
        with self._changed:
            while not self._is_closed and self._at > clock.mono_s():
                left = self._at - clock.mono_s()
                self._changed.wait(None if left == NEVER else left)
            self._at = NEVER
            return not self._is_closed
