"""What every service over lists does: ends on a signal, outlasts an outage, logs its figures."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Self

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisFull, RedisUnreachable
from fairlane.worker.log import Repeats
from fairlane.worker.termination import Signals

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("fairlane.lists")
AGAIN_S = 0.5  # after an error that may pass
BLOCK_S = settings.BLOCK_MS / 1000


def host() -> str:
    """Returns the name of this machine."""
    return socket.gethostname()


class Every:
    """Reports when something is due again. `seconds` 0 = never."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = clock.mono_s() + seconds

    def is_due(self) -> bool:
        """Returns True once in each period."""
        now = clock.mono_s()
        if not self._seconds or now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Loop:
    """Repeats a turn until SIGTERM, SIGINT, SIGHUP or `stop`.

    While it is entered, a signal ends the loop instead of the process. So it is entered before the
    service registers itself, and left after it has removed its registration. A turn returns False
    when it wants the loop to end. It is repeated after an outage, and while Redis is full. Any
    other error ends the loop.
    """

    def __init__(self) -> None:
        self._signals: Signals | None = None
        self._is_stopped = False
        self._repeats = Repeats()

    def __enter__(self) -> Self:
        self._signals = Signals().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._signals is not None:
            self._signals.__exit__(*error)

    def stop(self) -> None:
        """Ends the loop after the turn that runs."""
        self._is_stopped = True

    @property
    def is_ending(self) -> bool:
        """Returns True after a signal or `stop`."""
        return self._is_stopped or (self._signals is not None and self._signals.count > 0)

    def driver(self, url: str, patience_s: float = settings.PATIENCE_S) -> SyncDriver:
        """Returns a driver whose calls are not repeated any more once the loop is to end."""
        return SyncDriver(url, patience_s=patience_s, give_up=lambda: self.is_ending)

    def run(self, turn: Callable[[], bool]) -> None:
        """Repeats the turn. Raises what it raises, unless that may pass."""
        while not self.is_ending:
            try:
                if not turn():
                    return
            except (RedisUnreachable, RedisFull) as error:
                if not self.is_ending:
                    self._repeats.failed(error)
                    clock.sleep(AGAIN_S)
            else:
                self._repeats.over()
