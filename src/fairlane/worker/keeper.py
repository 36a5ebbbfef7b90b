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
from .maintenance import Maintenance

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
        self._maintenance = Maintenance(driver.url, queue, worker)

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
        self._maintenance.close()
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
        """Whatever is due: extensions, then the beat. Never raises what Redis does."""
        self._extend()
        if clock.mono_s() - self._beaten < (_OFTEN_S if often else settings.BEAT_MS / 1000):
            return
        try:
            self._beat()
        except FairlaneError as error:
            _log.warning("%s; trying again", error)

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
            self.is_idle = active_due == 0
            if leads:
                self._maintenance.told(now, active_due, delayed_due, oldest)
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
        """Extends what has used up a third of its lease; a failure does not stop the rest."""
        for held in self._board.held():
            now = clock.mono_s()
            if held.deadline - now >= held.lease_s * 2 / 3:
                continue
            record = self._board.records[held.unit]
            try:
                (reply,) = self._driver.run(
                    _calls([extend(held.request_id, held.k, str(held.fence), held.op)])
                )
            except FairlaneError as error:  # the record's own deadline tells the handler to stop
                _log.warning("could not extend a lease of request %s: %s", held.request_id, error)
                continue
            if reply[0] in {b"ok", b"cancelled"}:
                record.extended(held, now + held.lease_s)
            if reply[0] != b"ok":
                record.stop(held)

    def bury(self, records: tuple[Record, ...]) -> bool:
        """A process died: its leases are taken back at once; True if it held more than one.

        One lease is charged with the death. Of several nobody knows which was to blame, so none is.
        """
        all_held = [held for record in records if (held := record.held())]
        if len(all_held) != 1:
            self.give_back(all_held)
            return bool(all_held)
        (held,) = all_held
        self._board.records[held.unit].release()
        self._take_back(held, reap(
            self._queue, held.request_id, worker=self._worker, started=self.started,
            k=held.k, fence=str(held.fence),
        ))  # fmt: skip
        return False

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


def _calls(calls: list[Call]) -> Operation[list[Any]]:
    replies: list[Any] = yield Batch(calls)
    return replies
