"""What the leading worker does for the whole queue, in a thread of its own.

Looking after thousands of requests or knocking at dead workers' ports takes time, and the leases of
this worker can't wait for it. Every operation may run twice, so nobody minds when the lead changes
hands in the middle.
"""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from .. import clock, settings
from ..drivers.sync import SyncDriver
from ..errors import FairlaneError
from ..operations import maintain
from .health import split_id

if TYPE_CHECKING:
    from ..operations.maintain import Late

_log = logging.getLogger("fairlane.worker")
_NEVER = float("inf")
_KNOCKERS = 16
_OWN_HOST = ("127.", "localhost", "::1", "0.0.0.0", "::")  # noqa: S104  names, nothing is bound


class Maintenance:
    """Promotes, looks after requests and takes over from dead workers, when told that it is due."""

    def __init__(self, url: str, queue: str, worker: str) -> None:
        self._driver = SyncDriver(url, patience_s=settings.BEAT_MS / 1000)
        self._queue, self._worker = queue, worker
        self._due = threading.Condition()
        self._promote_at = self._look_at = _NEVER
        self._sees_late = self._is_closed = False
        self._tokens_at = 0.0
        self._thread: threading.Thread | None = None

    def told(self, now_ms: int, active_due: int, delayed_due: int, oldest_beat: int) -> None:
        """What a beat said while this worker leads: times of the server's clock, 0 = nothing."""
        with self._due:
            self._look_at = _moment(now_ms, active_due)
            self._promote_at = _moment(now_ms, delayed_due)
            self._sees_late = now_ms - oldest_beat > settings.LATE_MS
            if self._thread is None and self._is_anything_ever_due():
                self._thread = threading.Thread(target=self._work, name="maintenance", daemon=True)
                self._thread.start()
            self._due.notify()

    def close(self) -> None:
        """Ends the thread, at the latest after the call it is in."""
        with self._due:
            self._is_closed = True
            self._due.notify()
        if self._thread is not None:
            self._thread.join(settings.SOCKET_TIMEOUT_S)

    def _is_anything_ever_due(self) -> bool:
        return self._sees_late or min(self._promote_at, self._look_at) < _NEVER

    def _work(self) -> None:
        while True:
            with self._due:
                while not self._is_closed and not self._sees_late and self._next() > clock.mono_s():
                    left = self._next() - clock.mono_s()
                    self._due.wait(None if left == _NEVER else left)
                if self._is_closed:
                    return
                now = clock.mono_s()
                promote, look, late = self._promote_at <= now, self._look_at <= now, self._sees_late
                self._promote_at = _NEVER if promote else self._promote_at
                self._look_at = _NEVER if look else self._look_at
                self._sees_late = False
            try:
                self._maintain(promote=promote, look=look, late=late)
            except FairlaneError as error:
                _log.warning("maintenance: %s; trying again", error)
            except Exception:  # noqa: BLE001  this worker leads: nobody else would go on
                _log.exception("maintenance failed; trying again")

    def _next(self) -> float:
        return min(self._promote_at, self._look_at)

    def _maintain(self, *, promote: bool, look: bool, late: bool) -> None:
        if promote:
            self._driver.run(maintain.promote(self._queue))
        if look:
            audit = clock.mono_s() >= self._tokens_at
            self._driver.run(maintain.look_after(self._queue, audit=audit))
            if audit:
                self._tokens_at = clock.mono_s() + settings.TOKENS_S
        if late:
            for dead in self._dead():
                looked = self._driver.run(
                    maintain.take_over(self._queue, dead.worker, dead.started)
                )
                _log.warning(
                    "worker %s is dead: looked in %d requests for what it held", dead.worker, looked
                )

    def _dead(self) -> list[Late]:
        late = [
            other
            for other in self._driver.run(maintain.late_workers(self._queue))
            if other.worker != self._worker
        ]
        if not late:
            return []
        with ThreadPoolExecutor(_KNOCKERS) as pool:
            refused = list(pool.map(refuses, late))
        return [other for other, is_dead in zip(late, refused, strict=True) if is_dead]


def _moment(now_ms: int, due_ms: int) -> float:
    """A due time by the server's clock as one of ours; infinity for 0, nothing is due."""
    return clock.mono_s() + max(0, due_ms - now_ms) / 1000 if due_ms else _NEVER


def refuses(late: Late) -> bool:
    """Is the health port closed? One that does not answer at all proves nothing.

    Nor does our own loopback for a worker on another machine.
    """
    if late.worker.startswith(_OWN_HOST) and late.host != socket.gethostname():
        return False
    try:
        with socket.create_connection(split_id(late.worker), timeout=settings.PROBE_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, FairlaneError):
        return False
