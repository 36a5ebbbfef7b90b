"""What the supervisor does in Redis: beats, lease extensions, maintenance, taking back."""

from __future__ import annotations

import logging
import math
import os
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.common.backoff import connection_delays
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable, WorkerRefused
from fairlane.operations.lease import tokens
from fairlane.operations.lease.leases import acquire, extend, give_back, reap, show, shown
from fairlane.operations.lease.shards import served
from fairlane.operations.lease.stats import tally_timeout
from fairlane.operations.maintenance import dead_workers, registry
from fairlane.protocol.steps import Batch, Call, Operation
from fairlane.worker.host_identity import hostname_of, whereabouts
from fairlane.worker.log.repeats import Repeats
from fairlane.worker.maintenance.duty import Beat
from fairlane.worker.maintenance.leader import Maintenance
from fairlane.worker.supervisor.cancellation import Cancels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.model import Slice, Token, Verdict
    from fairlane.worker.lease_board import Held, LeaseBoard, LeaseRecord

_log = logging.getLogger("fairlane.worker")
_OFTEN_S = 0.1  # between beats while waiting for the queue to become idle
_UNHEALTHY_S = 10.0
_EXTEND_AT = 1 / 3  # of the lease is used up
_EXTEND_MOST = 100  # leases of one call
_QUIET_S = 10.0  # between two lines of the log about a node that is away
_AGAIN_S = 1.0  # between tries of a node that is away and has leases, which cannot wait long


class Keeper:
    """One worker's standing in its queue."""

    def __init__(self, driver: SyncDriver, queue: str, worker: str, board: LeaseBoard) -> None:
        self._driver, self._queue, self._worker, self._board = driver, queue, worker, board
        self.started = str(clock.wall_ms())
        self.must_drain = False
        self.is_idle = False
        self._beaten = self._answered = clock.mono_s()
        self._leads = self._has_died = False
        self._quiet_until = self._left_at = 0.0
        self._shards: tuple[int, ...] = (0,)
        self._cancels = Cancels(driver, queue)
        self._repeats = Repeats()
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
                registry.register(
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
            self._run(registry.unregister(self._queue, self._worker, self.started))
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
        self._take_left()
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
                registry.beat(self._queue, self._worker, self.started, holds, died=died)
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
                registry.register(
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
        for first in range(0, len(due), _EXTEND_MOST):
            some = due[first : first + _EXTEND_MOST]
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
        replies = self._driver.run(_calls(calls))
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

    def put_back(self, records: Sequence[LeaseRecord]) -> None:
        """Processes died with acquires on their way: what was or would be granted goes back.

        The answer did not reach the board, so the same is asked again. An acquire of the dead that
        arrives later is stale.
        """
        is_away = False
        for record in records:
            wanted = record.pending_acquire()
            record.end_acquire()
            token = tokens.parse(wanted[0]) if wanted else None
            if wanted is None or token is None or is_away:
                continue
            try:
                self._driver.run(self._put_back(token, wanted[1]))
            except FairlaneError as error:  # then whoever leads finds it
                what = f"request {token.request_id}"
                _log.warning("could not put back a token of %s: %s", what, error)
                is_away = _is_redis_away(error)

    def _take_left(self) -> None:
        """Asks again for what units gave up, as a node that hung may have granted it meanwhile.

        The token is in `delayed` or in a lane. It is stale once the same acquire was answered.
        """
        now = clock.mono_s()
        if now < self._left_at or not (records := self._board.abandoned()[:_EXTEND_MOST]):
            return
        self._left_at = now + _AGAIN_S
        for record, answer in self._ask_again(records):
            try:
                if isinstance(answer, FairlaneError):
                    raise answer
                self._driver.run(answer)
            except RedisUnreachable:  # it is asked again
                continue
            except FairlaneError as error:
                _log.warning("could not give back what was granted late: %s", error)
            record.forget_abandoned()

    def _ask_again(
        self, records: list[LeaseRecord]
    ) -> Iterator[tuple[LeaseRecord, Operation[None] | FairlaneError]]:
        """Shows the tokens with the same ops; with each, how to give back what it was granted."""
        asked = [
            (record, token, left[1])
            for record in records
            if (left := record.abandoned_acquire()) and (token := tokens.parse(left[0]))
        ]
        calls = [show(token, self._worker, self.started, 1, op) for _, token, op in asked]
        try:
            replies = self._driver.run(_calls(calls, math.inf))
        except FairlaneError as error:
            replies = [error] * len(calls)
        for (record, token, op), reply in zip(asked, replies, strict=True):
            is_error = isinstance(reply, FairlaneError)
            yield record, reply if is_error else self._undo(token, *shown(token, op, reply))

    def _put_back(self, token: Token, op: bytes) -> Operation[None]:
        word, taken, rest = yield from acquire(token, self._worker, self.started, 1, op=op)
        yield from self._undo(token, word.encode(), taken, rest)

    def _undo(
        self, token: Token, word: bytes, taken: Slice | None, rest: list[Any]
    ) -> Operation[None]:
        """Dispatches what an acquire brought, and returns its lease."""
        if word == b"ended":
            yield tokens.retire(self._queue, token.request_id, rest)
            return
        if calls := tokens.insert(self._queue, token.request_id, rest):
            yield Batch(calls)
        if taken is not None:
            reply = yield give_back(
                taken.request_id, taken.k, taken.fence.decode(), taken.op.decode(), is_unbegun=True
            )
            yield from registry.settle_reap(self._queue, token.request_id, reply)

    def _take_back(self, some: list[Held], calls: list[Call]) -> None:
        """What cannot be taken back expires, and whoever leads takes it back."""
        try:
            replies = self._driver.run(_calls(calls))
        except FairlaneError as error:
            replies = [error] * len(calls)
        away: FairlaneError | None = None
        for held, reply in zip(some, replies, strict=True):
            try:
                if away or isinstance(reply, FairlaneError):
                    raise away or reply
                self._driver.run(registry.settle_reap(self._queue, held.request_id, reply))
            except FairlaneError as error:
                away = error if _is_redis_away(error) else away
                what = f"a lease of request {held.request_id}"
                _log.warning("could not take back %s: %s", what, error)


def _is_redis_away(error: FairlaneError) -> bool:
    """Returns True if all of Redis is away, not only one node: the other leases fail, too."""
    return isinstance(error, RedisUnreachable) and not isinstance(error, NodeAway)


def _calls(calls: list[Call], again_s: float = _AGAIN_S) -> Operation[list[Any]]:
    """The replies, each an error if need be; a node that is away is waited for once."""
    away_s = settings.BEAT_MS / 1000
    replies: list[Any] = yield Batch(calls, lenient=True, away_s=away_s, again_s=again_s)
    return replies
