"""What the leading worker does for the whole queue, in a thread of its own.

Looking after thousands of requests or knocking at dead workers' ports takes time, and the leases of
this worker can't wait for it. Every operation may run twice, so nobody minds when the lead changes
hands in the middle.

Every hour it walks over all requests and puts those that are missing in the dispatch slot back
there (a failover or a person may have taken it). The first walk is an hour after the lead began, or
ten seconds after a beat found that the slot was wiped. It goes page by page in a thread of its own
and rests as long as it works, so that nothing waits for it. In a cluster a failover may take back
what another primary knows already: an end that was logged, an intent whose request stands. So there
the first walk is soon after the lead began, and another one when there is a new primary.
"""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .. import clock, settings
from ..drivers.sync import SyncDriver
from ..errors import FairlaneError
from ..operations import bounds, deaths, maintain, shards
from ..operations.fsck import Walk, primaries
from .health import split_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..operations.deaths import Late

_log = logging.getLogger("fairlane.worker")
_NEVER = float("inf")
_KNOCKERS = 16
_AGAIN_S = 60.0  # after a walk that failed
_LAPSE_S = 60.0  # without a beat that says so, one leads no more
_TOLD_MOST = 1000  # requests whose errors are said
_OWN_HOST = ("127.", "localhost", "::1", "0.0.0.0", "::")  # noqa: S104  names, nothing is bound


class Maintenance:
    """Promotes, looks after requests and takes over from dead workers, when told that it is due."""

    def __init__(self, url: str, queue: str, worker: str) -> None:
        self._driver = SyncDriver(url, patience_s=settings.BEAT_MS / 1000)
        self._queue, self._worker = queue, worker
        self._due = threading.Condition()
        self._promote_at = self._look_at = self._audit_at = _NEVER
        self._died_at = -_NEVER
        self._shards: tuple[int, ...] = (0,)
        self._is_moving = False
        self._sees_late = self._is_closed = False
        self._tokens_at = 0.0
        self._led_at = -_NEVER  # when a beat said last that we lead
        self._rebuild_at = _NEVER
        self._primaries_at = _NEVER
        self._primaries: set[Any] = set()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._rebuilding: threading.Thread | None = None
        self._failed: set[str] = set()

    def spread(self, numbers: Sequence[int], *, is_moving: bool) -> None:
        """The shards of the queue; `is_moving`: requests must be moved from some of them."""
        with self._due:
            self._shards, self._is_moving = tuple(numbers), is_moving

    def told(self, now_ms: int, active_due: int, delayed_due: int, oldest_beat: int) -> None:
        """What a beat said while this worker leads: times of the server's clock, 0 = nothing."""
        with self._due:
            self._lead()
            self._look_at = _moment(now_ms, active_due)
            self._promote_at = _moment(now_ms, delayed_due)
            if self._shards != (0,):  # nobody says what is due in their slots: each beat looks
                self._promote_at = clock.mono_s()
            self._sees_late = now_ms - oldest_beat > settings.KNOCK_MS
            self._begin()

    def glimpsed(self, now_ms: int, oldest_beat: int) -> None:
        """What a beat said while another leads: a worker may just have died, perhaps the leader.

        Every worker knocks then, as the next beat of the leader may be a second away. Once: whose
        port does not refuse is the leader's business.
        """
        self._primaries_at = _NEVER
        if settings.KNOCK_MS < now_ms - oldest_beat <= settings.KNOCK_MS + settings.BEAT_MS:
            with self._due:
                self._sees_late = True
                self._begin()

    def died(self) -> None:
        """A process died, of this worker or another: tokens may have been in its hands.

        They are looked for a grace later, when those that are on their way have arrived.
        """
        with self._due:
            self._died_at = clock.mono_s()
            self._audit_at = min(self._audit_at, self._died_at + settings.DEATH_GRACE_MS / 1000)
            self._begin()

    def _begin(self) -> None:
        if self._thread is None and self._is_anything_ever_due() and not self._is_closed:
            self._thread = threading.Thread(target=self._work, name="maintenance", daemon=True)
            self._thread.start()
        self._due.notify()

    def wiped(self) -> None:
        """A beat found no trace of this worker: the dispatch slot may have been wiped.

        Every worker is told so; the one that leads by then walks.
        """
        with self._due:
            self._rebuild_at = min(self._rebuild_at, clock.mono_s() + settings.WIPED_S)
            self._led_at = clock.mono_s()

    def close(self) -> None:
        """Ends the threads, at the latest after the call they are in."""
        with self._due:
            self._is_closed = True
            self._due.notify()
        self._closing.set()
        for thread in (self._thread, self._rebuilding):
            if thread is not None:
                thread.join(settings.SOCKET_TIMEOUT_S)

    def _lead(self) -> None:
        """Notes that we lead, and rebuilds when it is time to."""
        now = clock.mono_s()
        is_cluster = not self._driver.servers.is_one
        if now - self._led_at > _LAPSE_S:  # the lead has just begun
            self._rebuild_at = now + (settings.WIPED_S if is_cluster else settings.REBUILD_S)
        self._led_at = now
        if is_cluster and self._primaries_at == _NEVER:
            self._primaries_at, self._primaries = now, set()
        if now < self._rebuild_at or (self._rebuilding and self._rebuilding.is_alive()):
            return
        self._rebuild_at = now + settings.REBUILD_S
        self._rebuilding = threading.Thread(target=self._rebuild, name="rebuild", daemon=True)
        self._rebuilding.start()

    def _rebuild(self) -> None:
        """One walk; one that fails is begun anew soon."""
        walk = Walk(self._queue, repair=True, thorough=False)
        try:
            while not walk.is_over and not self._closing.is_set():
                began = clock.mono_s()
                for found in self._driver.run(walk.page()):
                    _log.warning("fsck: request %s %s: %s", found.name, found.what, found.mend)
                self._closing.wait(clock.mono_s() - began)
        except Exception as error:  # noqa: BLE001  whatever it was, nobody else would go on
            is_bug = not isinstance(error, FairlaneError)
            _log.warning("fsck: %s; trying again in a minute", error, exc_info=is_bug)
            with self._due:
                self._rebuild_at = clock.mono_s() + _AGAIN_S

    def _is_anything_ever_due(self) -> bool:
        return self._sees_late or self._next() < _NEVER

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
                lost = self._is_audit_due(now)
                is_due = self._primaries_at <= now
                if is_due:
                    self._primaries_at = now + settings.PRIMARIES_S
            try:
                if is_due:
                    self._look_for_new_primaries()
                self._maintain(promote=promote, look=look, late=late)
                if lost:
                    self._driver.run(maintain.audit(self._queue))
            except FairlaneError as error:
                _log.warning("maintenance: %s; trying again", error)
            except Exception:  # noqa: BLE001  this worker leads: nobody else would go on
                _log.exception("maintenance failed; trying again")

    def _next(self) -> float:
        return min(self._promote_at, self._look_at, self._audit_at, self._primaries_at)

    def _is_audit_due(self, now: float) -> bool:
        """True once a grace after a death; one that came later has its own."""
        if self._audit_at > now:
            return False
        due = self._died_at + settings.DEATH_GRACE_MS / 1000
        self._audit_at = due if due > now else _NEVER
        return True

    def _maintain(self, *, promote: bool, look: bool, late: bool) -> None:
        """Whatever is due; what fails keeps nothing else from its turn.

        What looks after work comes first: it may need one slot only, and the others many.
        """
        duties = [(look, self._look), (late, self._take_over)]
        duties += [(promote, self._promote), (promote and self._is_moving, self._move)]
        for is_due, duty in duties:
            try:
                if is_due:
                    duty()
            except FairlaneError as error:
                _log.warning("maintenance: %s; trying again", error)

    def _look(self) -> None:
        audit = clock.mono_s() >= self._tokens_at
        failed: dict[str, FairlaneError] = {}
        self._driver.run(maintain.look_after(self._queue, audit=audit, failed=failed))
        self._tell(failed)
        self._driver.run(bounds.recount(self._queue))
        if audit:
            self._tokens_at = clock.mono_s() + settings.TOKENS_S

    def _promote(self) -> None:
        self._driver.run(maintain.promote(self._queue, self._shards))

    def _move(self) -> None:
        self._driver.run(shards.move(self._queue))

    def _take_over(self) -> None:
        for dead in self._dead():
            looked = self._driver.run(deaths.take_over(self._queue, dead.worker, dead.started))
            _log.warning(
                "worker %s is dead: looked in %d requests for what it held", dead.worker, looked
            )
            self.died()

    def _look_for_new_primaries(self) -> None:
        """After a failover a walk is due, and a look for tokens."""
        self._driver.servers.moved()  # so that the cluster is asked
        known, self._primaries = self._primaries, set(self._driver.run(primaries()))
        new = self._primaries - known
        if known and new:
            shown = ", ".join(sorted(f"{host}:{port}" for host, port in new))
            _log.warning("%s took over in the cluster: looking for what it may not know", shown)
            with self._due:
                self._rebuild_at = min(self._rebuild_at, clock.mono_s())
            self.died()

    def _tell(self, failed: dict[str, FairlaneError]) -> None:
        """Says once what is wrong with a request: it will be the same at the next look."""
        for name, error in failed.items():
            if name not in self._failed and len(self._failed) < _TOLD_MOST:
                self._failed.add(name)
                _log.warning("maintenance: request %s: %s; going on with the others", name, error)

    def _dead(self) -> list[Late]:
        late = [
            other
            for other in self._driver.run(deaths.late_workers(self._queue))
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
