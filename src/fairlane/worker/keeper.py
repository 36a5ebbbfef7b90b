"""What the supervisor does in Redis: beats, lease extensions, maintenance, taking back."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from .. import clock, settings
from ..errors import FairlaneError, WorkerRefused
from ..operations import maintain
from ..operations.work import extend, give_back, reap
from ..retry import connection_delays
from ..steps import Batch, Call, Operation
from .health import split_id

if TYPE_CHECKING:
    from ..drivers.sync import SyncDriver
    from .board import Board, Held, Record

_log = logging.getLogger("fairlane.worker")
_OFTEN_S = 0.1  # between beats while waiting for the queue to become idle
_UNHEALTHY_S = 10.0


class Keeper:
    """One worker's standing in its queue."""

    def __init__(self, driver: SyncDriver, queue: str, worker: str, board: Board) -> None:
        self._driver, self._queue, self._worker, self._board = driver, queue, worker, board
        self.started = str(clock.wall_ms())
        self.must_drain = False
        self.is_idle = False
        self._beaten = self._answered = clock.mono_s()
        self._leads = self._sees_late = False
        self._look_at = self._promote_at = float("inf")

    @property
    def is_healthy(self) -> bool:
        """True while Redis answers the beats."""
        return clock.mono_s() - self._answered < _UNHEALTHY_S

    def register(self) -> None:
        """Enters the registry. Raises WorkerRefused when the id beats in another process.

        A worker that was killed a moment ago still looks alive: so this waits until a beat of
        the other life would be late.
        """
        for pause in connection_delays(settings.LATE_MS / 1000 + 1):
            word, *other = self._run(
                maintain.register(
                    self._queue, self._worker, socket.gethostname(), os.getpid(), self.started
                )
            )
            if word == b"ok":
                self._beat()
                self._succeed(other[0].decode())
                return
            clock.sleep(pause)
        host, pid = (text.decode() for text in other)
        raise WorkerRefused(
            f"worker id {self._worker} beats in another process (pid {pid} on {host}): "
            "choose another --id"
        )

    def _succeed(self, former: str) -> None:
        """Takes back what a former life of this name held: its port is ours, so it is dead."""
        if former and former != self.started:
            touched = self._driver.run(maintain.take_over(self._queue, self._worker, former))
            _log.info(
                "worker %s was here before: looked in %d requests for what it held",
                self._worker,
                touched,
            )

    def leave(self) -> None:
        """Leaves the registry; if Redis is gone, the record expires by itself."""
        try:
            self._run(maintain.unregister(self._queue, self._worker, self.started))
        except FairlaneError as error:
            _log.warning("could not unregister: %s", error)

    def wake(self) -> None:
        """The worker drains: its idle units need not wait for their pops to time out."""
        try:
            self._driver.run(maintain.wake(self._queue, self._worker, len(self._board.records)))
        except FairlaneError:
            return  # then they time out

    def tick(self, *, often: bool) -> None:
        """Whatever is due: extensions, the beat, maintenance. Never raises what Redis does."""
        try:
            self._extend()
            if clock.mono_s() - self._beaten >= (_OFTEN_S if often else settings.BEAT_MS / 1000):
                self._beat()
            if self._leads:
                self._maintain()
        except FairlaneError as error:
            self._beaten = clock.mono_s()
            _log.warning("%s; trying again", error)
            self._stop_expired()

    def _run(self, operation: Operation[list[bytes]] | Operation[int]) -> list[bytes]:
        return self._driver.run(operation)  # type: ignore[arg-type]

    def _beat(self) -> None:
        self._beaten = clock.mono_s()
        word, *rest = self._driver.run(
            maintain.beat(
                self._queue, self._worker, self.started, f"{len(self._board.held())} leases"
            )
        )
        self._answered = clock.mono_s()
        if word == b"ok":
            leads, now, active_due, delayed_due, oldest = rest
            self._leads, self.is_idle = bool(leads), active_due == 0
            self._look_at = _moment(now, active_due)
            self._promote_at = _moment(now, delayed_due)
            self._sees_late = now - oldest > settings.LATE_MS
        elif word == b"unknown":
            self._run(
                maintain.register(
                    self._queue, self._worker, socket.gethostname(), os.getpid(), self.started
                )
            )
        elif not self.must_drain:
            _log.warning(
                "worker %s drains: its record was %s",
                self._worker,
                "deleted" if word == b"drain" else "replaced",
            )
            self.must_drain = True

    # Leases.

    def _extend(self) -> None:
        """Extends what has used up a third of its lease, in one round trip."""
        now = clock.mono_s()
        due = [held for held in self._board.held() if held.deadline - now < held.lease_s * 2 / 3]
        for held in due:
            (reply,) = self._driver.run(
                _calls([extend(held.request_id, held.k, str(held.fence), held.op)])
            )
            record = self._board.records[held.unit]
            if reply[0] in {b"ok", b"cancelled"}:
                record.extended(held, now + held.lease_s)
            if reply[0] != b"ok":
                record.stop(held)

    def _stop_expired(self) -> None:
        """Redis is away: a handler is told to stop before its lease may be somebody else's."""
        now = clock.mono_s()
        for held in self._board.held():
            if held.deadline - now < held.lease_s / 10:
                self._board.records[held.unit].stop(held)

    def reap_dead(self, records: tuple[Record, ...]) -> None:
        """A process died: its leases are taken back at once, charged as a death."""
        for held in [held for record in records if (held := record.held())]:
            self._board.records[held.unit].release()
            self._take_back(held, reap(
                held.request_id, worker=self._worker, started=self.started,
                k=held.k, fence=str(held.fence),
            ))  # fmt: skip

    def give_back(self, all_held: list[Held]) -> None:
        """Stopping now: leases are returned uncharged."""
        for held in all_held:
            self._board.records[held.unit].release()
            self._take_back(held, give_back(held.request_id, held.k, str(held.fence), held.op))

    def _take_back(self, held: Held, call: Call) -> None:
        try:
            (reply,) = self._driver.run(_calls([call]))
            self._driver.run(maintain.settle_reap(self._queue, held.request_id, reply))
        except FairlaneError as error:  # then the lease expires, and whoever leads takes it back
            _log.warning("could not take back a lease of request %s: %s", held.request_id, error)

    # Maintenance, while this worker leads.

    def _maintain(self) -> None:
        now = clock.mono_s()
        if self._promote_at <= now:
            self._promote_at = float("inf")
            self._driver.run(maintain.promote(self._queue))
        if self._look_at <= now:
            self._look_at = float("inf")
            self._driver.run(maintain.look_after(self._queue))
        if self._sees_late:
            self._sees_late = False
            for worker, started in self._driver.run(maintain.late_workers(self._queue)):
                if worker != self._worker and _refuses(worker):
                    touched = self._driver.run(maintain.take_over(self._queue, worker, started))
                    _log.warning(
                        "worker %s is dead: took over what it held in %d requests", worker, touched
                    )


def _calls(calls: list[Call]) -> Operation[list[Any]]:
    replies: list[Any] = yield Batch(calls)
    return replies


def _moment(now_ms: int, due_ms: int) -> float:
    """A due time by the server's clock as one of ours; infinity for 0, nothing is due."""
    return clock.mono_s() + max(0, due_ms - now_ms) / 1000 if due_ms else float("inf")


def _refuses(worker: str) -> bool:
    """Is the health port closed? A port that does not answer at all proves nothing."""
    try:
        with socket.create_connection(split_id(worker), timeout=settings.PROBE_S):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, FairlaneError):
        return False
