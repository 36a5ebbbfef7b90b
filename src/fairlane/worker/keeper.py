"""What the supervisor does in Redis: beats, lease extensions, maintenance, taking back."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from .. import clock, settings
from ..errors import FairlaneError, RedisUnreachable, WorkerRefused
from ..operations import deaths, maintain, tokens
from ..operations.shards import served
from ..operations.stats import tally_timeout
from ..operations.work import acquire, extend, give_back, reap
from ..retry import connection_delays
from ..steps import Batch, Call, Operation
from .maintenance import Maintenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..drivers.sync import SyncDriver
    from ..model import Token, Verdict
    from .board import Board, Held, Record

_log = logging.getLogger("fairlane.worker")
_OFTEN_S = 0.1  # between beats while waiting for the queue to become idle
_UNHEALTHY_S = 10.0
_EXTEND_AT = 1 / 3  # of the lease is used up
_EXTEND_MOST = 100  # leases of one call


class Keeper:
    """One worker's standing in its queue."""

    def __init__(self, driver: SyncDriver, queue: str, worker: str, board: Board) -> None:
        self._driver, self._queue, self._worker, self._board = driver, queue, worker, board
        self.started = str(clock.wall_ms())
        self.must_drain = False
        self.is_idle = False
        self._beaten = self._answered = clock.mono_s()
        self._leads = False
        self._shards: tuple[int, ...] = (0,)
        self._maintenance = Maintenance(driver.url, queue, worker)
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
            touched = self._driver.run(deaths.take_over(self._queue, self._worker, former))
            self.died()
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
            units = self._board.units
            self._driver.run(maintain.wake(self._queue, self._worker, units, self._shards))
        except FairlaneError:
            return  # then they time out

    def died(self) -> None:
        """A process died or lost its connection: tokens in its hands are looked for soon."""
        self._maintenance.died()

    def _cut(self) -> None:
        """A call's connection broke.

        When the server cut or lost all of them, tokens went with the answers
        to pops; it is enough that the leader looks for them.
        """
        if self._leads:
            self.died()

    @property
    def until_beat_s(self) -> float:
        """Seconds until the next beat is due."""
        return max(0.0, self._beaten + settings.BEAT_MS / 1000 - clock.mono_s())

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
            leads, now, active_due, delayed_due, oldest, present, left = rest
            self.is_idle, self._leads = active_due == 0, bool(leads)
            self._shards = served(present, left)
            self._board.spread(self._shards)
            if leads:
                self._maintenance.spread(self._shards, is_moving=bool(left))
                self._maintenance.told(now, active_due, delayed_due, oldest)
            else:
                self._maintenance.glimpsed(now, oldest)
        elif word == b"unknown":
            self._maintenance.wiped()
            _log.warning(
                "worker %s is not in the registry any more (was Redis emptied?): it registers anew",
                self._worker,
            )
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
        """Extends what has used up a third of its lease; a failure does not stop the rest.

        In as few round trips as may be: a slow Redis must not hold up the beat once for each.
        """
        now = clock.mono_s()
        due = [
            held
            for held in self._board.held()
            if held.deadline - now < held.lease_s * (1 - _EXTEND_AT)
        ]
        for first in range(0, len(due), _EXTEND_MOST):
            some = due[first : first + _EXTEND_MOST]
            try:
                self._extend_all(some)
            except RedisUnreachable as error:  # nobody answered: the rest would wait as long
                _warn(due[first:], error)
                break

    def _extend_all(self, some: list[Held]) -> None:
        now = clock.mono_s()
        calls = [extend(held.request_id, held.k, str(held.fence), held.op) for held in some]
        replies = self._driver.run(_calls(calls, lenient=True))
        for held, reply in zip(some, replies, strict=True):
            if isinstance(reply, FairlaneError):  # the others' leases are extended
                _warn([held], reply)
                continue
            record = self._board.records[held.unit]
            if reply[0] in {b"ok", b"cancelled"}:
                record.extended(held, now + held.lease_s)
            if reply[0] != b"ok":
                record.stop(held)

    def bury(self, records: tuple[Record, ...]) -> bool:
        """A process died: its leases are taken back at once; True if it was in more than one.

        The lease that it was in is charged with the death. Of several nobody knows which was to
        blame, so none is; nor is what only waited for its turn, or to be settled.
        """
        all_held = [held for record in records if (held := record.held())]
        running = [held for held in all_held if held.has_its_turn]
        if len(running) != 1:
            self.give_back(all_held)
            return len(running) > 1
        self.give_back([held for held in all_held if held is not running[0]])
        self._charge(running[0])
        return False

    def _charge(self, held: Held) -> None:
        """Of several sub-requests nobody knows which was to blame: reap charges none of them."""
        self._board.records[held.unit].release()
        call = reap(
            self._queue, held.request_id, worker=self._worker, started=self.started,
            k=held.k, fence=str(held.fence),
        )  # fmt: skip
        self._take_back([held], [call])

    def give_back(
        self, all_held: list[Held], verdicts: Sequence[Verdict] = (), *, is_dead: bool = True
    ) -> None:
        """Leases are returned uncharged, but for these verdicts.

        `is_dead`: their process is. A living one has not begun them, and must let go of its records
        itself: they may hold other leases by now.
        """
        for start in range(0, len(all_held), _EXTEND_MOST):
            some = all_held[start : start + _EXTEND_MOST]
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

    def put_back(self, records: Sequence[Record]) -> None:
        """Processes died with acquires on their way: what was or would be granted goes back.

        The answer did not reach the board, so the same is asked again. An acquire of the dead that
        arrives later is stale.
        """
        is_away = False
        for record in records:
            wanted = record.wanted()
            record.unwant()
            token = tokens.parse(wanted[0]) if wanted else None
            if wanted is None or token is None or is_away:
                continue
            try:
                self._driver.run(self._put_back(token, wanted[1]))
            except FairlaneError as error:  # then whoever leads finds it
                what = f"request {token.request_id}"
                _log.warning("could not put back a token of %s: %s", what, error)
                is_away = isinstance(error, RedisUnreachable)  # for the others, too

    def _put_back(self, token: Token, op: bytes) -> Operation[None]:
        word, taken, rest = yield from acquire(token, self._worker, self.started, 1, op=op)
        if word == "ended":
            yield tokens.retire(self._queue, token.request_id, rest)
            return
        if calls := tokens.insert(self._queue, token.request_id, rest):
            yield Batch(calls)
        if taken is not None:
            reply = yield give_back(
                taken.request_id, taken.k, taken.fence.decode(), taken.op.decode()
            )
            yield from maintain.settle_reap(self._queue, token.request_id, reply)

    def _take_back(self, some: list[Held], calls: list[Call]) -> None:
        """What cannot be taken back expires, and whoever leads takes it back."""
        try:
            replies = self._driver.run(_calls(calls, lenient=True))
        except FairlaneError as error:
            replies = [error] * len(calls)
        away: FairlaneError | None = None
        for held, reply in zip(some, replies, strict=True):
            try:
                if away or isinstance(reply, FairlaneError):
                    raise away or reply
                self._driver.run(maintain.settle_reap(self._queue, held.request_id, reply))
            except FairlaneError as error:
                away = error if isinstance(error, RedisUnreachable) else away  # nor for the others
                what = f"a lease of request {held.request_id}"
                _log.warning("could not take back %s: %s", what, error)


def _warn(some: list[Held], error: FairlaneError) -> None:
    """A lease was not extended: the record's own deadline tells its handler to stop."""
    more = f" and {len(some) - 1} more" if len(some) > 1 else ""
    _log.warning("could not extend a lease of request %s%s: %s", some[0].request_id, more, error)


def _calls(calls: list[Call], *, lenient: bool = False) -> Operation[list[Any]]:
    replies: list[Any] = yield Batch(calls, lenient=lenient)
    return replies
