"""The worker itself: registers, forks the processes, keeps their leases alive, drains.

The supervisor runs no handler, so no handler can stop it from extending leases and sending beats.
"""

from __future__ import annotations

import logging
import os
import selectors
from functools import partial
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.common.text import plural
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.operations.lease import check_rights
from fairlane.operations.queues import reach
from fairlane.operations.why import waiting
from fairlane.protocol.keys import check_name
from fairlane.protocol.lua import library
from fairlane.queue import Queue
from fairlane.worker import calls
from fairlane.worker.board import LeaseBoard
from fairlane.worker.child import Assignment
from fairlane.worker.handlers import Handler, shape_of
from fairlane.worker.health_port import HealthPort, full_id, own_address
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.lease_keeper import LeaseKeeper
from fairlane.worker.limits import LOOK_S, CancelGrace, StalledLeases, TimeLimits, check_grace
from fairlane.worker.log import Failures, LogQueue, Repeats
from fairlane.worker.orders import Orders
from fairlane.worker.pool import ChildProcess, ProcessPool
from fairlane.worker.termination import Signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.records import Demand


# ------------------------------------------------------------------ idle report
# Logs what a worker with `--until-idle` still waits for.


_log = logging.getLogger("fairlane.worker")
_QUIET_S = 5.0  # without work for so long, the cause is read; also the time between two reads
_SHOWN = 5  # requests named


class IdleReport:
    """Reads now and then why nothing happens, and logs a new cause."""

    def __init__(self, driver: SyncDriver, queue: str, board: LeaseBoard) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self._quiet_since = clock.mono_s()
        self._slices = 0  # how many were settled at the last look
        self._logged: list[tuple[str, str, int]] = []

    def look(self) -> None:
        """Logs a new cause; to be called often. Raises no error of Redis."""
        slices, now = self._board.counts()["slices"], clock.mono_s()
        if slices != self._slices or self._board.held():
            self._quiet_since, self._slices = now, slices
        if now - self._quiet_since < _QUIET_S:
            return
        self._quiet_since = now
        try:
            found, more = self._driver.run(waiting(self._queue))
        except FairlaneError:
            return  # the heartbeat logs this error
        causes = [(one.request_id, one.kind, one.due_ms) for one in found]
        if not found or causes == self._logged:
            return
        self._logged = causes
        named = ", ".join(f"{one.request_id} ({one.why})" for one in found[:_SHOWN])
        more += max(0, len(found) - _SHOWN)
        _log.info(
            "nothing can start: waiting for request%s %s%s",
            "s" if len(found) > 1 else "",
            named,
            f" and {more:,} more" if more else "",
        )


_TICK_S = 0.2
_LONGEST_SLICE_S = 10
_SPARE_MOST = 255  # spare records of one process, for more than one lease a unit


def _check_count(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgument(
            f"{name} {value!r} is not valid: a whole number from 1 to {most} is expected"
        )


class Worker:
    """Works on a queue: `processes` child processes with `concurrency` units each.

    `handler` is `def f(body: bytes) -> bytes | str | None`, an `async def`, or a batch handler (see
    batch_handler); it may take a Context as its second argument. `id` is host:port, the address of
    the health port ([host]:port for IPv6). `:port` is a port of this machine's address in the
    network of Redis; None takes a free port of 127.0.0.1. `slice_s` is how
    many seconds one lease's work should take; 0 means one sub-request a lease. `tokens` is the most
    leases that one unit holds while the handler is quick; 1 means one lease at a time.
    `time_limit_s` is the longest time of one call of the handler. The smallest of three limits
    counts: this, the handler's own (see time_limit) and the request's. `cancel_grace_s`: a handler
    that goes on for so many seconds after its request was cancelled is ended with its process,
    uncharged; None = it may finish. `release` names the users' code that runs, as 2026.11.28;
    the default is FAIRLANE_RELEASE. Raises InvalidArgument, HandlerNotFound.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        id: str | None = None,  # noqa: A002  the word of the API
        concurrency: int = 1,
        processes: int = 1,
        slice_s: float = settings.SLICE_MS / 1000,
        tokens: int = settings.TOKENS_MOST,
        time_limit_s: float | None = None,
        cancel_grace_s: float | None = settings.CANCEL_GRACE_S,
        release: str | None = None,
    ) -> None:
        self._release = settings.release(release)
        _check_count("concurrency", concurrency, 1000)
        _check_count("processes", processes, 256)
        _check_count("tokens", tokens, settings.TOKENS_MOST)
        if not isinstance(slice_s, (int, float)) or not 0 <= slice_s <= _LONGEST_SLICE_S:
            raise InvalidArgument(
                f"slice_s {slice_s!r} is not valid: 0 to {_LONGEST_SLICE_S} seconds are expected"
            )
        if not isinstance(queue, Queue):
            raise InvalidArgument(f"queue {queue!r} is not valid: a fairlane.Queue is expected")
        self.queue = queue
        self.id = "{}:{}".format(*own_address(full_id(id, queue.driver.url)))
        self._shape = shape_of(handler).limited(time_limit_s)
        self._cancel_grace_s = check_grace(cancel_grace_s)
        self._concurrency, self._processes, self._slice_ms = concurrency, processes, slice_s * 1000
        # Each lease of a unit that holds several stands on a record of its own.
        self._tokens = tokens
        # Only a process with one unit fetches further leases while it handles the first ones.
        each = 2 * (tokens - 1) if concurrency == 1 else tokens - 1
        self._spare = min(each * concurrency, _SPARE_MOST)
        self._board = self._new_board()
        self._woken = False
        self.on_registered: Callable[[SyncDriver], None] = lambda _: None
        self.on_beat: Callable[[SyncDriver], None] = lambda _: None

    def _new_board(self) -> LeaseBoard:
        count = self._processes
        grace_s = calls.GRACE_S if self._shape.is_async else 0.0
        return LeaseBoard(
            self._concurrency * count, self._spare * count, count,
            limit_s=self._shape.time_limit_s, grace_s=grace_s,
        )  # fmt: skip

    def stop(self) -> None:
        """Drains: finishes what is held, takes nothing new. For any thread or signal handler."""
        self._board.drain()

    def run(
        self, *, until_idle: bool = False, watch: Callable[[dict[str, int]], bool] | None = None
    ) -> int:
        """Works until SIGTERM, SIGHUP, SIGINT or `stop`, or until no request is unfinished.

        `watch` is called several times a second, and once at the end, with the counts so far. If it
        returns True, the worker drains. It must not take long, because leases are extended between
        its calls. Returns 0. A second signal stops immediately and gives back what is held,
        uncharged. Raises WorkerRefused (port taken, id in use) and RedisError; one is RedisUnfit,
        if the user of Redis lacks a right that a worker needs.
        """
        self._watch = watch
        library().load()  # before the first fork: later the files may be another release's
        with LogQueue():
            return self._run(until_idle=until_idle)

    def _run(self, *, until_idle: bool) -> int:
        port = HealthPort(self.id, self._report, self._demand)
        self.id = check_name("worker id", port.address)
        try:
            # A driver of its own, as the queue's may be in use by other threads of this process.
            driver = SyncDriver(
                self.queue.driver.url,
                patience_s=settings.BEAT_MS / 1000,
                timeout_s=settings.KEEPER_TIMEOUT_S,
            )
            with driver.noting(_log.warning, self.queue.driver.patience_s):
                driver.check(driver.patience_s)  # Redis may be starting, too
                driver.run(reach(self.queue.name))
            driver.run(check_rights(self.queue.name, self.id))
            self._join(driver)
            self._idle_report = IdleReport(driver, self.queue.name, self._board)
            try:
                # Signals first: a worker in the registry may get one from any reader of it.
                with Signals() as signals:
                    self._heartbeat.register()
                    try:
                        return self._supervise(port, signals, until_idle=until_idle)
                    finally:
                        self._keeper.report_left(is_away=not self._heartbeat.leave())
            finally:
                driver.close()
                self._board.close()
                self._board, self._woken = self._new_board(), False
        finally:
            port.close()

    def _join(self, driver: SyncDriver) -> None:
        """Makes the parts that keep this worker and its leases alive."""
        name, outage = self.queue.name, Repeats()
        self._heartbeat = Heartbeat(
            driver, name, self.id, self._board, outage, release=self._release
        )
        self._heartbeat.on_registered = partial(self.on_registered, driver)
        self._heartbeat.on_beat = partial(self.on_beat, driver)
        started = self._heartbeat.started
        self._keeper = LeaseKeeper(driver, name, self.id, started, self._board, outage)

    def _supervise(self, port: HealthPort, signals: Signals, *, until_idle: bool) -> int:
        self._failures = Failures(self._shape.task_of)
        self._children = ProcessPool(self._assignments(), [port.close, signals.forget])
        signals.groups = self._children.running
        self._time_limits = TimeLimits(self._children, self._keeper, is_async=self._shape.is_async)
        self._orders = Orders(
            self._keeper.driver, self.queue.name, self.id, self._board, self._children,
            self._keeper, self._shape,
        )  # fmt: skip
        self._keeper.cancels.on_orders = self._heartbeat.on_orders = self._orders.note
        self._grace = CancelGrace(self._children, self._keeper, self._cancel_grace_s)
        is_batch = self._shape.is_batch
        self._stalled = StalledLeases(
            self._board, self._keeper, self._slice_ms, splits=not is_batch
        )
        try:
            with selectors.DefaultSelector() as selector:
                port.watch(selector)
                woken = self._board.open_pipe()
                selector.register(woken, selectors.EVENT_READ, self._board.clear)
                selector.register(signals.pipe, selectors.EVENT_READ, signals.clear)
                self._children.start()
                _log.info(
                    "worker %s takes from queue %s: processes %d, concurrency %d",
                    self.id,
                    self.queue.name,
                    self._processes,
                    self._concurrency,
                )
                ticks = 0.0  # when the next tick is due
                while not self._children.is_over:
                    is_soon = until_idle or self._time_limits.is_waiting or self._orders.is_working
                    now = clock.mono_s()
                    ticks = min(ticks, now + (_TICK_S / 4 if is_soon else _TICK_S))
                    wait_s = min(ticks - now, self._heartbeat.until_beat_s)
                    if wait_s > LOOK_S and not self._board.may_sleep():
                        wait_s = LOOK_S
                    events = selector.select(max(0.0, wait_s))
                    for key, _ in events:
                        key.data()
                    port.expire()
                    self._heed(signals)
                    if self._stalled.is_due:
                        self._collect()  # a dead process's call is not slow
                        self._stalled.look()
                    if events or clock.mono_s() >= ticks or self._heartbeat.until_beat_s <= 0:
                        self._tick(until_idle=until_idle)
                        ticks = clock.mono_s() + _TICK_S
        finally:  # after any error, because nothing would extend their leases
            if self._children.running:
                self._stop_now()
            self._failures.look(is_last=True)
            self._failures.close()
        self._look()
        _log.info("worker %s has stopped: %s", self.id, _totals(self._board.counts()))
        return 0

    def _heed(self, signals: Signals) -> None:
        if signals.count > 1:
            self._stop_now()
        elif signals.count and not self._board.is_draining:
            tries = f", and tries for up to {settings.CALL_PATIENCE_S:.0f} s to settle it while "
            _log.info(
                "worker %s drains: it finishes what it holds%s; a second signal stops it now",
                self.id,
                f"{tries}Redis does not answer" if self._heartbeat.is_away else "",
            )
            self._board.drain()

    def _collect(self) -> None:
        """Takes back what dead processes held, and starts them again when that is due."""
        for child in self._children.collect(restart=not self._board.is_draining):
            if self._settle(child):  # none was charged
                self._children.alone(child.records)
            self._keeper.unanswered.put_back(child.records)
            self._heartbeat.on_process_death()
            for record in child.records[: self._concurrency]:
                self._board.clear_batch(record.unit)

    def _tick(self, *, until_idle: bool) -> None:
        self._collect()
        if self._board.pop_connection_loss():
            self._heartbeat.on_process_death()
        if self._board.is_draining:
            self._keeper.note_unsettled(is_away=self._heartbeat.is_away)
        else:
            self._keeper.report_left()
        self._time_limits.look()
        self._grace.look()
        self._stalled.look_at_waiting()
        self._failures.look()
        self._keeper.tick()
        self._heartbeat.tick(often=until_idle)
        self._orders.look()
        if self._heartbeat.must_drain or (until_idle and self._heartbeat.is_idle):
            self._board.drain()
        if until_idle and not self._board.is_draining:
            self._idle_report.look()
        self._look()
        if self._board.is_draining and not self._woken:
            self._woken = True
            self._heartbeat.wake()

    def _settle(self, child: ChildProcess) -> bool:
        """Takes back what a dead process held; True if several leases ran and none was charged."""
        if child.killed is not None:
            return self._orders.settle(child)
        if child.unwanted:
            return self._grace.settle(child)
        return self._time_limits.settle(child) if child.late else self._take_back(child)

    def _look(self) -> None:
        """Passes the counts to `watch`, which may drain the worker."""
        if self._watch is not None:
            counts = self._board.counts()
            if self._watch({**counts, "held": len(self._board.held())}):
                self._board.drain()

    def _take_back(self, child: ChildProcess) -> bool:
        return self._keeper.take_back_dead_process(child.records, child.how)

    def _stop_now(self) -> None:
        """Kills the processes and gives back what they held: nothing is lost or charged."""
        held = self._board.held()
        _log.info("worker %s stops now and gives back %s", self.id, plural(len(held), "lease"))
        self._children.kill()
        self._keeper.give_back(self._board.held())
        self._keeper.unanswered.put_back(self._board.records)

    def _assignments(self) -> list[Assignment]:
        board, step, more = self._board, self._concurrency, self._spare
        own, spare = board.records[: board.units], board.records[board.units :]
        return [
            Assignment(
                self.queue.driver.url,
                self.queue.name,
                self.id,
                self._heartbeat.started,
                self._shape,
                self._slice_ms,
                tuple(own[i * step : (i + 1) * step]),
                tuple(spare[i * more : (i + 1) * more]),
                self._tokens,
                self._failures,
                self._release,
            )
            for i in range(self._processes)
        ]

    def _report(self) -> dict[str, Any]:
        return {
            "worker": self.id,
            "queue": self.queue.name,
            "pid": os.getpid(),
            "healthy": self._heartbeat.is_healthy,
            "draining": self._board.is_draining,
            "processes": len(self._children.running),
            "restarts": self._children.restarts,
            "crashes": self._children.crashes,
            "held": len(self._board.held()),
            **self._board.counts(),
        }

    def _demand(self) -> Demand | None:
        return self._heartbeat.demand()


def _totals(counts: dict[str, int]) -> str:
    done, failed = plural(counts["done"], "sub-request"), plural(counts["failed"], "attempt")
    return f"{done} done, {failed} failed, {counts['dead']:,} dead"
