"""The forwarder: sends the messages of a list to a list on another Redis, in order, for ever."""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from fairlane.common import clock
from fairlane.common.text import plural
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.lists.service import BLOCK_S, Every, Loop, host, log
from fairlane.operations import lists
from fairlane.operations.lists import Flight, ForwardState, Standby

if TYPE_CHECKING:
    from fairlane.lists.service import ListAddress
    from fairlane.operations.lists import Disagreement
    from fairlane.protocol.steps import Operation

T = TypeVar("T")

LEASE_S = 10.0
_PATIENCE_S = 5.0  # of one call: then the loop repeats it
_STANDBY_S = 0.5  # between two looks of a replica that waits


def state_of(source: ListAddress, target: ListAddress | None = None) -> ForwardState:
    """Returns how far the forwarding of a list is. Raises RedisError.

    Without the target, a batch on its way counts as lag, though the target may have it already.
    """
    state = _ask(source, lists.read_state(source.name))
    if target is None:
        return state
    return state.with_landed(_ask(target, lists.read_landed(target.name, state.epoch)))


def _ask(address: ListAddress, operation: Operation[T]) -> T:
    with closing(operation), closing(SyncDriver(address.url)) as driver:
        driver.meet(log.warning)
        found: T = driver.run(operation)
        return found


class Forwarder:
    """Forwards the list `source` to the list `target`; run several, and one of them is active.

    A message leaves the source when the target has it. After a crash or a lost reply it may be
    sent again, and the target leaves it out. Raises InvalidArgument, RedisError.
    """

    def __init__(
        self,
        source: ListAddress,
        target: ListAddress,
        *,
        lease_s: float = LEASE_S,
        metrics_interval: float = 60,
    ) -> None:
        self.forwarded = 0
        self._from, self._to = source, target
        self._lease_ms = int(lease_s * 1000)
        self._owner = f"{host()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._loop = Loop()
        self._source = self._loop.driver(source.url, _PATIENCE_S)
        self._target = self._loop.driver(target.url, _PATIENCE_S)
        self._landed: Flight | None = None
        self._lag: int | None = None  # not known yet
        self._is_standby = False
        self._until_idle = False
        self._metrics = Every(metrics_interval)

    def stop(self) -> None:
        """Ends the forwarder after its batch; for any thread."""
        self._loop.stop()

    def run(self, *, until_idle: bool = False) -> int:
        """Runs until a signal or `stop`; with `until_idle` until no message waits.

        Returns how many messages it has forwarded.
        """
        self._until_idle = until_idle
        try:
            self._source.meet(log.warning)
            self._target.meet(log.warning)
            self._refuse_same_list()
            log.info("forwards %s to %s", self._from.shown, self._to.shown)
            with self._loop:
                try:
                    self._loop.run(self._turn)
                finally:  # also after an error, so that another forwarder need not wait
                    self._release()
        finally:
            self._source.close()
            self._target.close()
        log.info("%s: ends", self._so_far())
        return self.forwarded

    def _so_far(self) -> str:
        """Returns what this forwarder has done; a standby has no lag."""
        done = f"{plural(self.forwarded, 'message')} forwarded"
        if self._is_standby:
            return f"{done}, another forwarder is active"
        return done if self._lag is None else f"{done}, lag {self._lag}"

    def _refuse_same_list(self) -> None:
        """Raises InvalidArgument if both lists are one, by whatever address."""
        if self._from.name != self._to.name or self._from.database != self._to.database:
            return
        here, there = (one.run(lists.server_ids()) for one in (self._source, self._target))
        if here & there:
            raise InvalidArgument(
                f"list {self._from.name} is both --from and --to: "
                "name different lists, or its messages come again for ever"
            )

    def _turn(self) -> bool:
        if self._metrics.is_due():
            log.info("%s", self._so_far())
        found = self._source.run(self._next(self._lease_ms))
        self._landed = None  # the source has its number now
        if isinstance(found, Standby):
            self._stand_by(found)
            return True
        if self._is_standby:
            self._is_standby = False
            log.info("the other forwarder has ended: active now")
        self._lag = found.lag
        if found.messages:
            self._send(found)
            return True
        if self._until_idle:
            return False
        self._source.run(lists.wait_for_message(self._from.name, BLOCK_S))
        return True

    def _next(self, lease_ms: int) -> Operation[Flight | Standby]:
        fresh = secrets.token_hex(8)
        return lists.next_forward(self._from.name, self._owner, lease_ms, fresh, self._landed)

    def _stand_by(self, found: Standby) -> None:
        if not self._is_standby:
            self._is_standby = True
            log.info("another forwarder is active: waits until it ends")
        clock.sleep(min(_STANDBY_S, found.left_ms / 1000))

    def _send(self, flight: Flight) -> None:
        landing = self._target.run(lists.land(self._to.name, flight))
        if landing.word == "ok":
            self._landed = flight
            self.forwarded += landing.pushed
            self._lag = flight.waiting
        elif landing.word == "wrongtype":
            raise InvalidArgument(
                f"key {self._to.name} at the target holds no list: name another, or delete what "
                "it holds"
            )
        else:
            self._restart(flight, landing.word)

    def _restart(self, flight: Flight, word: str) -> None:
        """Numbers the messages anew; those in flight are sent, maybe a second time."""
        if word == "gap":
            log.warning("the target has lost messages that it had confirmed, or is another one")
        else:
            log.warning(
                "the source was set back: up to %s may come twice",
                plural(len(flight.messages), "message"),
            )
        fresh = secrets.token_hex(8)
        reason: Disagreement = "gap" if word == "gap" else "diverged"
        self._source.run(lists.restart_forward(self._from.name, flight.epoch, fresh, reason))

    def _release(self) -> None:
        """Settles the last batch and ends the lease, so that a replica goes on immediately."""
        try:
            self._source.run(self._next(0))
        except FairlaneError as error:
            log.warning("the lease is left to expire: %s", error)
