"""Keeps a worker in its queue's registry: registers it, sends heartbeats and unregisters it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.common.clock import connection_delays
from fairlane.common.text import plural
from fairlane.errors import FairlaneError, WorkerRefused
from fairlane.operations import workers
from fairlane.operations.holds import Holds, WorkerPace
from fairlane.operations.pause import QueuePause
from fairlane.operations.rates import parse_queue_rate
from fairlane.operations.shards import served
from fairlane.worker.awaited_calls import AwaitedCalls
from fairlane.worker.health_port import hostname_of, whereabouts
from fairlane.worker.leader import Beat, Maintenance
from fairlane.worker.log import Repeats, is_redis_away
from fairlane.worker.measures import Pace
from fairlane.worker.slow_calls import SlowCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.common.rate import Rate
    from fairlane.drivers.sync import SyncDriver
    from fairlane.protocol.scripts import HeartbeatReply, RegisterWorkerReply
    from fairlane.protocol.steps import Operation
    from fairlane.records import Demand
    from fairlane.worker.board import LeaseBoard


_log = logging.getLogger("fairlane.worker")
_OFTEN_S = 0.1  # between beats while waiting for the queue to become idle
_UNHEALTHY_S = 10.0


class Heartbeat:
    """The registration and the beats of one worker.

    `outage` logs repeated failures; a beat with a reply ends the outage. `release` is that of the
    users' code.
    """

    def __init__(
        self,
        driver: SyncDriver,
        queue: str,
        worker: str,
        board: LeaseBoard,
        outage: Repeats | None = None,
        release: str = "",
    ) -> None:
        self._driver, self._queue, self._worker, self._board = driver, queue, worker, board
        self._pace, self._release, self._slow = Pace(board.units), release, SlowCalls(board)
        self._awaited = AwaitedCalls(driver, queue, board)
        self._version = settings.version()
        self.started = str(clock.wall_ms())
        self.must_drain = False
        self.is_idle = False
        self.is_away = False  # True if Redis did not answer the last beat
        self._beaten = self._answered = clock.mono_s()
        self._leads = self._has_died = self._is_paused = False
        self._shards: tuple[int, ...] = (0,)
        self._rate: Rate | None = None  # of the queue
        self._outage = outage or Repeats()
        self._maintenance = Maintenance(driver.url, queue, worker, outage=self._outage.outage)
        self._maintenance.on_death = self.on_process_death
        self.on_orders: Callable[[int], None] = lambda _: None  # gets the queue's count of orders
        self.on_registered: Callable[[], None] = lambda: None  # again after Redis lost the record
        self.on_beat: Callable[[], None] = lambda: None
        driver.on_cut = self._cut

    @property
    def is_healthy(self) -> bool:
        """Returns True while Redis answers the beats."""
        return clock.mono_s() - self._answered < _UNHEALTHY_S

    def register(self) -> None:
        """Registers the worker. Raises WorkerRefused if the id beats in another process.

        A worker that was killed a moment ago still seems alive. So this waits until a beat of the
        other process would be late.
        """
        for pause in connection_delays(settings.LATE_MS / 1000 + 1):
            reply, former = self._driver.run(self._registration())
            if reply.is_ok:
                self._beat()
                self._succeed(former)
                self.on_registered()
                return
            clock.sleep(pause)
        where = f"pid {reply.pid.decode()} on {hostname_of(reply.host.decode())}"
        raise WorkerRefused(
            f"worker id {self._worker} beats in another process ({where}): choose another --id"
        )

    def _registration(self) -> Operation[tuple[RegisterWorkerReply, str]]:
        return workers.register_worker(
            self._queue, self._worker, whereabouts(), os.getpid(), self.started, self._release
        )

    def _succeed(self, former: str) -> None:
        """Takes back leases of an earlier process of this name, which is dead: its port is ours."""
        if former and former != self.started:
            touched = self._driver.run(workers.take_over(self._queue, self._worker, former))
            self._driver.run(workers.note_death(self._queue, self._worker, former, whereabouts()))
            self.on_process_death()
            _log.info(
                "worker %s was here before: looked in %s for what it held",
                self._worker,
                plural(touched, "request"),
            )

    def leave(self) -> bool:
        """Unregisters the worker; False if Redis is unreachable: then the record expires."""
        self._maintenance.close()
        try:
            self._driver.run(workers.unregister_worker(self._queue, self._worker, self.started))
        except FairlaneError as error:
            _log.warning("could not unregister: %s", error)
            return not is_redis_away(error)
        return True

    def wake(self) -> None:
        """Wakes the idle units, because the worker drains or the queue is paused."""
        try:
            units = self._board.units
            self._driver.run(workers.wake(self._queue, self._worker, units, self._shards))
        except FairlaneError:
            return  # then the pops time out

    def on_process_death(self) -> None:
        """Sends a beat now that reports that a process died or lost its connection.

        A token may have been lost with the reply to its pop, so the leader looks for it.
        """
        self._has_died = True
        self._beaten = 0.0

    def _cut(self) -> None:
        """Notes that a call's connection broke.

        If the server cut or lost all connections, tokens went with the replies to pops. The next
        beat of the leader is soon enough to report it.
        """
        self._has_died = self._has_died or self._leads

    def demand(self) -> Demand | None:
        """Returns the demand of the queue if this worker leads and has measured it."""
        return self._maintenance.demand()

    @property
    def until_beat_s(self) -> float:
        """Returns the seconds until the next beat is due."""
        return max(0.0, self._beaten + settings.BEAT_MS / 1000 - clock.mono_s())

    def tick(self, *, often: bool) -> None:
        """Sends a beat if one is due. Raises no error of Redis."""
        if clock.mono_s() - self._beaten < (_OFTEN_S if often else settings.BEAT_MS / 1000):
            return
        try:
            self._beat()
        except FairlaneError as error:
            self._outage.failed(error)
            self.is_away = is_redis_away(error)
        else:
            self._outage.over()
            self.is_away = False

    def _beat(self) -> None:
        self._beaten = clock.mono_s()
        held = self._board.held()
        pace = self._measure(len(held))
        calls = self._board.reported()
        slow, awaits = self._slow.look(held), self._awaited.look(held)
        holds = Holds(len(held), pace, self._version, self._release, calls, slow, awaits).text
        died, self._has_died = self._has_died, False
        try:
            reply = self._driver.run(
                workers.heartbeat(self._queue, self._worker, self.started, holds, died=died)
            )
        except FairlaneError:
            self._has_died = self._has_died or died
            raise
        self._answered = clock.mono_s()
        if reply.is_ok:
            self._on_beat(reply)
            self._awaited.report(awaits)
        elif reply.is_unknown:
            self._maintenance.on_registry_lost()
            _log.warning(
                "worker %s is not in the registry any more (was Redis emptied?): it registers anew",
                self._worker,
            )
            self._driver.run(self._registration())
            self.on_registered()
        elif not self.must_drain:
            _log.warning(
                "worker %s drains: its record was %s",
                self._worker,
                "deleted" if reply.is_drain else "replaced",
            )
            self.must_drain = True

    def _measure(self, held: int) -> WorkerPace:
        counts = self._board.counts()
        settled = counts["done"] + counts["dead"]
        per_s = self._pace.look(self._beaten, held, settled, counts["busy_us"])
        return WorkerPace(self._board.units, per_s)

    def _pause(self, pause: QueuePause) -> None:
        """Passes a pause of the queue, or its end, to the units."""
        if pause.is_paused == self._is_paused:
            return
        self._is_paused = pause.is_paused
        self._board.pause(is_paused=pause.is_paused)
        if pause.is_paused:
            _log.info("queue %s is %s: this worker takes nothing", self._queue, pause.text)
            self.wake()  # otherwise a unit that waits in a pop would take the next token
        else:
            _log.info("queue %s is resumed", self._queue)

    def _limit_rate(self, rate: Rate | None) -> None:
        """Passes another rate of the queue to the units."""
        if rate == self._rate:
            return
        self._rate = rate
        self._board.limit_rate(*((rate.interval_us, rate.burst) if rate else (0, 0)))
        shown = f"starts at most {rate.words}" if rate else "has no rate any more"
        _log.info("queue %s %s", self._queue, shown)

    def _on_beat(self, reply: HeartbeatReply) -> None:
        self.is_idle, self._leads = reply.active_due == 0, bool(reply.leads)
        self._shards = served(reply.shards, reply.left)
        self._board.spread(self._shards)
        self._pause(QueuePause(reply.paused_until, reply.now))
        self._limit_rate(parse_queue_rate(self._queue, reply.rate))
        self.on_beat()
        self.on_orders(reply.orders)
        beat = Beat(
            *(reply.now, reply.active_due, reply.delayed_due, reply.oldest_beat),
            *(reply.died, reply.tick_due),
        )
        if self._leads:
            self._maintenance.spread(self._shards, is_moving=bool(reply.left))
            self._maintenance.on_beat_as_leader(beat)
        else:
            self._maintenance.on_beat_as_follower(beat)
