"""What the supervisor does in Redis: beats, lease extensions, maintenance, taking back."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable, WorkerRefused
from fairlane.operations.lease.leases import (
    extend,
    give_back,
    reap,
)
from fairlane.operations.lease.shards import served
from fairlane.operations.lease.stats import tally_timeout
from fairlane.operations.maintenance import dead_workers, registry
from fairlane.worker.host_identity import hostname_of, whereabouts
from fairlane.worker.log.repeats import Repeats
from fairlane.worker.maintenance.duty import Beat
from fairlane.worker.maintenance.leader import Maintenance
from fairlane.worker.supervisor.batches import AT_MOST, is_redis_away, send_all
from fairlane.worker.supervisor.cancellation import CancellationWatch
from fairlane.worker.supervisor.unanswered_acquires import UnansweredAcquires

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.model import Verdict
    from fairlane.protocol.steps import Call, Operation
    from fairlane.worker.held import Held
    from fairlane.worker.lease_board import LeaseBoard, LeaseRecord

_log = logging.getLogger("fairlane.worker")
_OFTEN_S = 0.1  # between beats while waiting for the queue to become idle
_UNHEALTHY_S = 10.0
_EXTEND_AT = 1 / 3  # of the lease is used up
_QUIET_S = 10.0  # between two lines of the log about a node that is away


class LeaseKeeper:
    """One worker's standing in its queue."""

    def __init__(self, driver: SyncDriver, queue: str, worker: str, board: LeaseBoard) -> None:
        self._driver, self._queue, self._worker, self._board = driver, queue, worker, board
        self.started = str(clock.wall_ms())
        self.must_drain = False
        self.is_idle = False
        self._beaten = self._answered = clock.mono_s()
        self._leads = self._has_died = False
        self._quiet_until = 0.0
        self._shards: tuple[int, ...] = (0,)
        self._cancels = CancellationWatch(driver, queue)
        self._repeats = Repeats()
        self.unanswered = UnansweredAcquires(driver, queue, worker, self.started, board)
        self._maintenance = Maintenance(driver.url, queue, worker)
        self._maintenance.on_death = self.on_process_death
        driver.on_cut = self._cut

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
                registry.register_worker(
                    self._queue, self._worker, whereabouts(), os.getpid(), self.started
                )
            )
            if word == b"ok":
                self._beat()
                self._succeed(other[0].decode())
                return
            clock.sleep(pause)
        place, pid = (text.decode() for text in other)
        where = f"pid {pid} on {hostname_of(place)}"
        raise WorkerRefused(
            f"worker id {self._worker} beats in another process ({where}): choose another --id"
        )

    def _succeed(self, former: str) -> None:
        """Takes back what a former life of this name held: its port is ours, so it is dead."""
        if former and former != self.started:
            touched = self._driver.run(dead_workers.take_over(self._queue, self._worker, former))
            self.on_process_death()
            _log.info(
                "worker %s was here before: looked in %d requests for what it held",
                self._worker,
                touched,
            )

    def leave(self) -> None:
        """Leaves the registry; if Redis is gone, the record expires by itself."""
        self._maintenance.close()
        try:
            self._run(registry.unregister_worker(self._queue, self._worker, self.started))
        except FairlaneError as error:
            _log.warning("could not unregister: %s", error)

    def wake(self) -> None:
        """The worker drains: its idle units need not wait for their pops to time out."""
        try:
            units = self._board.units
            self._driver.run(registry.wake(self._queue, self._worker, units, self._shards))
        except FairlaneError:
            return  # then they time out

    def on_process_death(self) -> None:
        """Reports with a beat now that a process died or lost its connection.

        A token may have been lost with the reply to its pop, so the leader looks for it.
        """
        self._has_died = True
        self._beaten = 0.0

    def _cut(self) -> None:
        """A call's connection broke.

        When the server cut or lost all of them, tokens went with the replies to pops. It is enough
        that the leader reports it, with its next beat.
        """
        self._has_died = self._has_died or self._leads

    @property
    def until_beat_s(self) -> float:
        """Seconds until the next beat is due."""
        return max(0.0, self._beaten + settings.BEAT_MS / 1000 - clock.mono_s())

    def tick(self, *, often: bool) -> None:
        """Whatever is due: extensions, then the beat. Never raises what Redis does."""
        all_held = self._board.held()
        self._extend(all_held, only_due=not self._cancels.are_new(all_held))
        self.unanswered.take_granted_late()
        if clock.mono_s() - self._beaten < (_OFTEN_S if often else settings.BEAT_MS / 1000):
            return
        try:
            self._beat()
        except FairlaneError as error:
            self._repeats.warn(f"{error}; trying again")
        else:
            self._repeats.over()

    def _run(self, operation: Operation[list[bytes]] | Operation[int]) -> list[bytes]:
        return self._driver.run(operation)  # type: ignore[arg-type]

    def _beat(self) -> None:
        self._beaten = clock.mono_s()
        holds = f"{len(self._board.held())} leases"
        died, self._has_died = self._has_died, False
        try:
            word, *rest = self._driver.run(
                registry.heartbeat(self._queue, self._worker, self.started, holds, died=died)
            )
        except FairlaneError:
            self._has_died = self._has_died or died
            raise
        self._answered = clock.mono_s()
        if word == b"ok":
            self._on_beat(*rest)
        elif word == b"unknown":
            self._maintenance.on_registry_lost()
            _log.warning(
                "worker %s is not in the registry any more (was Redis emptied?): it registers anew",
                self._worker,
            )
            self._run(
                registry.register_worker(
                    self._queue, self._worker, whereabouts(), os.getpid(), self.started
                )
            )
        elif not self.must_drain:
            _log.warning(
                "worker %s drains: its record was %s",
                self._worker,
                "deleted" if word == b"drain" else "replaced",
            )
            self.must_drain = True

    def _on_beat(
        self, leads: int, now: int, active_due: int, delayed_due: int, oldest: int,
        present: bytes, left: bytes, died_ms: int,
    ) -> None:  # fmt: skip
        self.is_idle, self._leads = active_due == 0, bool(leads)
        self._shards = served(present, left)
        self._board.spread(self._shards)
        beat = Beat(now, active_due, delayed_due, oldest, died_ms)
        if leads:
            self._maintenance.spread(self._shards, is_moving=bool(left))
            self._maintenance.on_beat_as_leader(beat)
        else:
            self._maintenance.on_beat_as_follower(beat)

    # Leases.

    def _extend(self, all_held: list[Held], *, only_due: bool = True) -> None:
        """Extends what has used up a third of its lease; a failure does not stop the rest.

        In as few round trips as may be: a slow Redis must not hold up the beat once for each.
        """
        now = clock.mono_s()
        due = [
            held
            for held in all_held
            if not only_due or held.deadline - now < held.lease_s * (1 - _EXTEND_AT)
        ]
        for first in range(0, len(due), AT_MOST):
            some = due[first : first + AT_MOST]
            try:
                self._extend_all(some)
            except NodeAway as error:  # one node has all of these leases
                self._warn(some, error)
            except RedisUnreachable as error:  # nobody answered: the rest would wait as long
                self._warn(due[first:], error)
                break

    def _extend_all(self, some: list[Held]) -> None:
        now = clock.mono_s()
        calls = [extend(held.request_id, held.k, str(held.fence), held.op) for held in some]
        replies = self._driver.run(send_all(calls))
        for held, reply in zip(some, replies, strict=True):
            if isinstance(reply, FairlaneError):  # the others' leases are extended
                self._warn([held], reply)
                continue
            record = self._board.records[held.unit]
            if reply[0] in {b"ok", b"cancelled"}:
                record.extended(held, now + held.lease_s)
            if reply[0] != b"ok":
                record.stop(held)

    def _warn(self, some: list[Held], error: FairlaneError) -> None:
        """Logs that leases were not extended: their records' own deadlines stop their handlers.

        A node that is away is tried at every tick, so that is logged only now and then.
        """
        now = clock.mono_s()
        if isinstance(error, NodeAway):
            if now < self._quiet_until:
                return
            self._quiet_until = now + _QUIET_S
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        name = some[0].request_id
        self._repeats.warn(f"could not extend a lease of request {name}{more}: {error}")

    def bury(self, records: tuple[LeaseRecord, ...], how: str = "") -> bool:
        """A process died: its leases are taken back at once; True if it was in more than one.

        The lease that it was in is charged with the death. Of several nobody knows which was to
        blame, so none is. Nor is one whose handler was not called, or one that was to be settled.
        """
        all_held = [held for record in records if (held := record.held())]
        running = [held for held in all_held if held.has_its_turn]
        if len(running) != 1:
            self.give_back(all_held)
            return len(running) > 1
        self.give_back([held for held in all_held if held is not running[0]])
        self._charge(running[0], how)
        if running[0].attempts:
            records[0].count_failed(running[0].attempt, running[0].attempts)
        return False

    def _charge(self, held: Held, how: str) -> None:
        """Of several sub-requests nobody knows which was to blame: reap charges none of them."""
        self._board.records[held.unit].release()
        call = reap(
            self._queue, held.request_id, worker=self._worker, started=self.started,
            k=held.k, fence=str(held.fence), how=how,
        )  # fmt: skip
        self._take_back([held], [call])

    def give_back(
        self, all_held: list[Held], verdicts: Sequence[Verdict] = (), *, is_dead: bool = True
    ) -> None:
        """Leases are returned uncharged, but for these verdicts.

        `is_dead`: their process is. A living one has not begun them, and must let go of its records
        itself: they may hold other leases by now.
        """
        for start in range(0, len(all_held), AT_MOST):
            some = all_held[start : start + AT_MOST]
            for held in some if is_dead else ():
                self._board.records[held.unit].release()
            self._take_back(some, [
                give_back(
                    held.request_id, held.k, str(held.fence), held.op, verdicts,
                    is_unbegun=not is_dead,
                )
                for held in some
            ])  # fmt: skip

    def timed_out(self, request_id: str) -> None:
        """Counts a call that was killed in the queue's statistics, if Redis answers."""
        try:
            self._driver.run(tally_timeout(self._queue, request_id))
        except FairlaneError:
            return

    def _take_back(self, some: list[Held], calls: list[Call]) -> None:
        """What cannot be taken back expires, and whoever leads takes it back."""
        try:
            replies = self._driver.run(send_all(calls))
        except FairlaneError as error:
            replies = [error] * len(calls)
        away: FairlaneError | None = None
        for held, reply in zip(some, replies, strict=True):
            try:
                if away or isinstance(reply, FairlaneError):
                    raise away or reply
                self._driver.run(registry.settle_reap(self._queue, held.request_id, reply))
            except FairlaneError as error:
                away = error if is_redis_away(error) else away
                what = f"a lease of request {held.request_id}"
                _log.warning("could not take back %s: %s", what, error)
