"""The fan-out: hands over messages until it is stopped, and keeps its own registration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common import clock
from fairlane.common.text import plural
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import RedisError, RedisUnreachable
from fairlane.lists.service import BLOCK_S, Every, Loop, check_one_slot, host, log
from fairlane.operations import lists
from fairlane.operations.lists import Tracking, fan_out, read_backlog
from fairlane.protocol import keys

if TYPE_CHECKING:
    from fairlane.lists.service import FanoutOptions
    from fairlane.operations.lists import Backlog, Service
    from fairlane.protocol.steps import Operation

_SETTLE_S = 1.0  # between two looks at tracked messages


@dataclass
class FanoutCounts:
    """What a fan-out has done so far."""

    messages: int = 0
    done: int = 0
    timed_out: int = 0


class FanoutState(NamedTuple):
    """The lengths of all lists, and the services that are registered."""

    backlog: Backlog
    services: list[Service]


def state_of(url: str, options: FanoutOptions) -> FanoutState:
    """Returns what waits in the lists of a fan-out, and its services. Raises RedisError."""
    driver = SyncDriver(url)
    try:
        driver.meet(log.warning)
        backlog = driver.run(read_backlog(options.route))
        found = driver.run(lists.read_services(options.space)) if options.space else []
        return FanoutState(backlog, found)
    finally:
        driver.close()


class Fanout:
    """Pushes each message of one list to all lists of `options`, or to the shortest of them.

    Several of them, also on several machines, may share the lists. Each message is handed over
    exactly once, whichever of them dies. Raises InvalidArgument, RedisError.
    """

    def __init__(self, url: str, options: FanoutOptions) -> None:
        self.options = options
        self.counts = FanoutCounts()
        self._loop = Loop()
        self._driver = self._loop.driver(url)
        self._route = options.route
        self._service = ""
        self._renewed_s = 0.0
        self._until_idle = False
        self._metrics = Every(options.metrics_interval)
        self._renewal = Every(options.service_renew)
        self._settling = Every(_SETTLE_S)

    def stop(self) -> None:
        """Ends the fan-out within its pop timeout; for any thread."""
        self._loop.stop()

    def run(self, *, until_idle: bool = False) -> FanoutCounts:
        """Runs until a signal or `stop`, or with `until_idle` until no message waits."""
        self._until_idle = until_idle
        with self._loop:
            try:
                if self._begin():
                    self._loop.run(self._turn)
            finally:
                self._end()
        log.info("%s handed over: ends", plural(self.counts.messages, "message"))
        return self.counts

    def _begin(self) -> bool:
        """Registers; returns False after a signal during the wait for Redis."""
        options, driver = self.options, self._driver
        try:
            driver.meet(log.warning)
        except RedisUnreachable:
            if self._loop.is_ending:
                return False
            raise
        names = [keys.raw(name) for name in self._route.names]
        space = options.space
        check_one_slot(driver, names + ([space.ids] if space else []))
        if space:
            self._register()
        log.info("fan-out from %s to %s", self._route.source, ", ".join(self._route.outs))
        return True

    def _register(self) -> None:
        self._service = self._driver.run(self._registration())
        self._renewed_s = clock.mono_s()
        log.info("registered %s:%s", self.options.namespace, self._service)

    def _registration(self) -> Operation[str]:
        options = self.options
        return lists.register(
            keys.Namespace(options.namespace),
            host(),
            os.getpid(),
            options.service_expire,
            options.service_capacity,
        )

    def _turn(self) -> bool:
        block_s = 0.0 if self._until_idle else min(self.options.pop_timeout, BLOCK_S)
        moved = self._driver.run(fan_out(self._route, block_s, self._tracking()))
        self.counts.messages += moved or 0
        if self._metrics.is_due():
            self._log_metrics()
        if not self._keep_registered():
            return False
        self._settle()
        return moved is not None or not self._until_idle

    def _tracking(self) -> Tracking | None:
        options = self.options
        if not options.message_timeout or options.space is None:
            return None
        return Tracking(
            options.space, self._service, options.message_timeout, options.expire_of_message
        )

    def _keep_registered(self) -> bool:
        """Returns False if a person has deleted the registration: that is how to end a service.

        One that expired during an outage, or that Redis has lost, is made again.
        """
        space, expire_s = self.options.space, self.options.service_expire
        if space is None or not self._renewal.is_due():
            return True
        if self._driver.run(lists.renew(space, self._service, expire_s)):
            self._renewed_s = clock.mono_s()
            return True
        is_expired = clock.mono_s() - self._renewed_s >= expire_s
        if is_expired or not self._driver.run(lists.has_services(space)):
            self._register()
            return True
        log.info("registration %s:%s is gone: ends", space.name, self._service)
        self._service = ""
        return False

    def _settle(self, *, is_last: bool = False) -> None:
        if self._tracking() is None or not (is_last or self._settling.is_due()):
            return
        space = keys.Namespace(self.options.namespace)
        settled = self._driver.run(lists.settle_messages(space))
        self.counts.done += settled.done
        self.counts.timed_out += settled.timed_out

    def _log_metrics(self) -> None:
        backlog = self._driver.run(read_backlog(self._route))
        lengths = zip(self._route.outs, backlog.outs, strict=True)
        counts = self.counts
        log.info(
            "%s handed over; waiting %d, pending %d; %s%s",
            plural(counts.messages, "message"),
            backlog.waiting,
            backlog.pending,
            ", ".join(f"{name} {length}" for name, length in lengths),
            f"; done {counts.done}, timed out {counts.timed_out}" if self._tracking() else "",
        )

    def _end(self) -> None:
        try:
            if self._service and (space := self.options.space) is not None:
                self._settle(is_last=True)
                self._driver.run(lists.unregister(space, self._service))
        except RedisError as error:
            log.warning("registration %s is left to expire: %s", self._service, error)
        finally:
            self._driver.close()
