"""Extends a worker's leases, and takes back the leases of its processes that die."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common import clock
from fairlane.common.text import join_names, plural
from fairlane.errors import FairlaneError, NodeAway, RedisUnreachable
from fairlane.operations import apart_keys, tokens, workers
from fairlane.operations.lease import (
    acquire,
    acquire_call,
    exchange,
    exchange_unit,
    extend,
    give_back,
    reap,
)
from fairlane.operations.orders import read_time_limits
from fairlane.operations.stats import tally_timeout
from fairlane.operations.tokens import follow_up
from fairlane.protocol import scripts
from fairlane.protocol.steps import Batch
from fairlane.worker.limits import CancellationWatch
from fairlane.worker.log import Repeats, is_redis_away
from fairlane.worker.settle import add_rest
from fairlane.worker.unit import FollowUps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Token, Verdict
    from fairlane.protocol.scripts import AcquireReply
    from fairlane.protocol.steps import Call, Operation, R
    from fairlane.worker.board import Held, LeaseBoard, LeaseRecord


# ------------------------------------------------------------------ batches
# The supervisor's calls for many leases in one round trip.


AT_MOST = 100  # leases of one call
AGAIN_S = 1.0  # between tries of an unreachable node that has leases, because these expire soon


async def send_all(calls: Sequence[Call[R]], again_s: float = AGAIN_S) -> list[R | FairlaneError]:
    """Returns the replies, each of which may be an error; waits once for a node that is away."""
    away_s = settings.BEAT_MS / 1000
    replies: list[R | FairlaneError] = await Batch(
        calls, lenient=True, away_s=away_s, again_s=again_s
    )
    return replies


# ------------------------------------------------------------------ unanswered acquires
# Handles acquires whose reply a unit did not receive: Redis may have granted them.
#
# The op of each acquire or exchange is on the lease board. So the supervisor sends the same one
# again, and gives back the leases that it gets.


_log = logging.getLogger("fairlane.worker")


class UnansweredAcquires:
    """Returns leases to Redis that were granted to acquires without a reply."""

    def __init__(
        self,
        driver: SyncDriver,
        queue: str,
        worker: str,
        started: str,
        board: LeaseBoard,
        outage: Repeats | None = None,
    ) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self._outage = outage or Repeats()
        self._worker, self._started = worker, started
        self._next_at = 0.0

    def put_back(self, records: Sequence[LeaseRecord]) -> None:
        """Gives back leases that were or would be granted to acquires of processes that died.

        The reply did not reach the board, so the same acquire is sent again. If the first one
        arrives later, it is stale.
        """
        is_away = False
        for record in records:
            wanted = record.pending_acquire()
            record.end_acquire()
            if wanted is None or is_away:
                continue
            word, op = wanted
            token = tokens.parse(word)
            try:
                if token is not None:
                    self._driver.run(self._put_back(token, op))
                elif not word:
                    self._driver.run(self._put_back_exchanged(record.unit, op))
            except FairlaneError as error:  # then the leader finds the tokens
                what = "the tokens of an exchange"
                if token is not None:
                    what = f"a token of request {token.request_id}"
                _log.warning("could not put back %s: %s", what, error)
                is_away = is_redis_away(error)

    def take_back_unread(self, record: LeaseRecord) -> bool:
        """Gives back what an exchange acquires whose reply a living process may not read for long.

        The process gives it back too, when it has read the reply. Returns False if a call failed.
        """
        op = record.revoke_exchange()
        if op is None:
            return True
        try:
            self._driver.run(self._put_back_exchanged(record.unit, op))
        except FairlaneError as error:
            self._outage.failed(error, "could not put back the tokens of an exchange: ")
            return False
        return True

    def take_granted_late(self) -> None:
        """Sends abandoned acquires again, because a node that hung may have granted them meanwhile.

        The token is in `delayed` or in a lane. It is stale once the same acquire was answered.
        """
        now = clock.mono_s()
        if now < self._next_at or not (records := self._board.abandoned()[:AT_MOST]):
            return
        self._next_at = now + AGAIN_S
        for record, answer in self._ask_again(records):
            try:
                if isinstance(answer, FairlaneError):
                    raise answer
                self._driver.run(answer)
            except RedisUnreachable:  # it is sent again later
                continue
            except FairlaneError as error:
                _log.warning("could not give back what was granted late: %s", error)
            record.forget_abandoned()

    def _ask_again(
        self, records: list[LeaseRecord]
    ) -> Iterator[tuple[LeaseRecord, Operation[None] | FairlaneError]]:
        """Shows the tokens with the same ops; yields with each how to give back what it got."""
        asked = [
            (record, token, left[1])
            for record in records
            if (left := record.abandoned_acquire()) and (token := tokens.parse(left[0]))
        ]
        calls = [acquire_call(token, self._worker, self._started, 1, op) for _, token, op in asked]
        apart = [token for _, token, _ in asked if token.is_apart]
        try:
            if apart:
                self._driver.run(apart_keys.make_stale(self._queue, apart))
            replies = self._driver.run(send_all(calls, math.inf))
        except FairlaneError as error:
            replies = [error] * len(calls)
        for (record, token, op), reply in zip(asked, replies, strict=True):
            if isinstance(reply, FairlaneError):
                yield record, reply
            else:
                yield record, self._undo(token, op, reply)

    async def _put_back_exchanged(self, unit: int, op: bytes) -> None:
        """Returns the leases of an exchange; if it arrives later, it acquires nothing."""
        sender = exchange_unit(self._queue, self._worker, self._started, unit)
        reply = await exchange(sender, op, ())
        if reply is None:
            return
        read = scripts.AcquireReply.of
        rest = FollowUps(self._queue)
        add_rest(rest, reply)
        if calls := rest.calls():
            await Batch(calls)
        for word, acquired in zip(reply.tokens, reply.acquired, strict=True):
            token = tokens.parse(word)
            if token is None:
                continue
            if not acquired:
                await self._put_back(token, op)
            elif (found := read(acquired)).is_ok:
                await self._undo(token, op, found)

    async def _put_back(self, token: Token, op: bytes) -> None:
        if token.is_apart:  # otherwise a lease could be granted now, without its keys
            await apart_keys.make_stale(self._queue, [token])
        reply, _ = await acquire(token, self._worker, self._started, 1, op=op)
        await self._undo(token, op, reply)

    async def _undo(self, token: Token, op: bytes, reply: AcquireReply) -> None:
        """Follows up the reply of an acquire, and returns the lease that it granted."""
        calls = follow_up(self._queue, (token.request_id, reply))
        if token.is_apart and not reply.is_ok:
            calls += tokens.insert_tokens(self._queue, [apart_keys.given_back(token, op)])
        if calls:
            await Batch(calls)
        if reply.is_ok:
            call = give_back(
                token.request_id, token.k, reply.fence.decode(), op.decode(), is_unbegun=True
            )
            returned = await call
            if calls := follow_up(self._queue, (token.request_id, returned)):
                await Batch(calls)


_EXTEND_AT = 1 / 3  # a lease is extended when so much of it is used up
_QUIET_S = 10.0  # between two lines of the log about a node that is away


class LeaseKeeper:
    """The leases of one worker, which began at `started`; `outage` is that of its heartbeat."""

    def __init__(
        self,
        driver: SyncDriver,
        queue: str,
        worker: str,
        started: str,
        board: LeaseBoard,
        outage: Repeats | None = None,
    ) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self.driver = driver
        self._worker, self._started = worker, started
        self._quiet_until = 0.0
        self.cancels = CancellationWatch(driver, queue)
        self.cancels.on_time_limits = self._read_time_limits
        self._outage = outage or Repeats()
        # By unit and version, while Redis is unreachable: leases not taken back, and not settled.
        self._left: dict[tuple[int, int], Held] = {}
        self._unsettled: dict[tuple[int, int], Held] = {}
        self.cancelled: dict[tuple[int, int], float] = {}  # since when, by unit and version
        self.unanswered = UnansweredAcquires(driver, queue, worker, started, board, self._outage)

    def tick(self) -> None:
        """Extends the leases that are due, and takes back late grants. Raises no error of Redis."""
        all_held = self._board.held()
        if self.cancelled:
            still = {(held.unit, held.version) for held in all_held}
            self.cancelled = {at: since for at, since in self.cancelled.items() if at in still}
        self._extend(all_held, only_due=not self.cancels.are_new(all_held))
        self.unanswered.take_granted_late()

    def _read_time_limits(self) -> None:
        """Notes on the board the time limits that requests have now; see `set_time_limit`."""
        all_held = self._board.held()
        ids = [*dict.fromkeys(held.request_id for held in all_held)]
        try:
            found = self._driver.run(read_time_limits(ids))
        except FairlaneError as error:
            self._warn(all_held, error, "read the time limit of")
            return
        for held in all_held:
            if held.request_id in found:
                self._board.records[held.unit].change_limit(held, found[held.request_id])

    def _extend(self, all_held: list[Held], *, only_due: bool = True) -> None:
        """Extends the leases of which a third is used up; a failure does not stop the others.

        It uses few round trips, because many of them to a slow Redis would delay the heartbeat.
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
            except NodeAway as error:  # this node has all of these leases
                self._warn(some, error)
            except RedisUnreachable as error:  # no node answers: other calls would wait as long
                self._warn(due[first:], error)
                break

    def _extend_all(self, some: list[Held]) -> None:
        now = clock.mono_s()
        calls = [extend(held.request_id, held.k, str(held.fence), held.op) for held in some]
        replies = self._driver.run(send_all(calls))
        for held, reply in zip(some, replies, strict=True):
            if isinstance(reply, FairlaneError):  # an error of one lease: the others are extended
                self._warn([held], reply)
                continue
            record = self._board.records[held.unit]
            if reply.is_ok or reply.is_cancelled:
                record.extended(held, now + held.lease_s)
            if reply.is_cancelled:
                self.cancelled.setdefault((held.unit, held.version), now)
            if not reply.is_ok:
                record.stop(held)

    def _warn(self, some: list[Held], error: FairlaneError, what: str = "extend") -> None:
        """Logs that leases were not extended; their handlers stop at the deadlines on the board.

        `what` else was not done with them.

        An unreachable node is tried at every tick, so this is logged only every 10 seconds.
        """
        now = clock.mono_s()
        if isinstance(error, NodeAway):
            if now < self._quiet_until:
                return
            self._quiet_until = now + _QUIET_S
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        name = some[0].request_id
        if is_redis_away(error):
            self._outage.failed(error)
        else:
            self._outage.warn(f"could not {what} a lease of request {name}{more}: {error}")

    def take_back_dead_process(self, records: tuple[LeaseRecord, ...], how: str = "") -> bool:
        """Returns the leases of a process that died; True if more than one of them was running.

        The only one that was running is charged an attempt. If several were, none is charged,
        because the cause is unknown. A lease is not running before its first call and after its
        last one.
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
        """Calls reap, which charges a death to a lease unless it owes several entries."""
        self._board.records[held.unit].release()
        call = reap(
            self._queue, held.request_id, worker=self._worker, started=self._started,
            k=held.k, fence=str(held.fence), how=how,
        )  # fmt: skip
        self._take_back([held], [call])

    def give_back(
        self, all_held: list[Held], verdicts: Sequence[Verdict] = (), *, is_dead: bool = True
    ) -> list[Held]:
        """Returns leases to Redis, uncharged except for these verdicts.

        `is_dead`: their process is dead. A living process has not begun these leases. It must
        release its records itself, because they may hold other leases by now. The result is the
        leases of a living process that Redis did not take back.
        """
        left: list[Held] = []
        for start in range(0, len(all_held), AT_MOST):
            some = all_held[start : start + AT_MOST]
            for held in some if is_dead else ():
                self._board.records[held.unit].release()
            calls = [
                give_back(
                    held.request_id, held.k, str(held.fence), held.op, verdicts,
                    is_unbegun=not is_dead,
                )
                for held in some
            ]  # fmt: skip
            if is_dead:
                self._take_back(some, calls)
            else:
                left += self.settle(some, calls)
        return left

    def settle(self, all_held: list[Held], calls: list[Call[Any]]) -> list[Held]:
        """Sends calls that settle leases, or parts of them; the units send the same again later.

        Returns the leases whose call failed. To send it again is a no-op for what was settled.
        """
        left: list[Held] = []
        for start in range(0, len(all_held), AT_MOST):
            some = all_held[start : start + AT_MOST]
            few = calls[start : start + AT_MOST]
            try:
                replies = self._driver.run(send_all(few))
            except FairlaneError as error:
                replies = [error] * len(some)
            away: FairlaneError | None = None  # then the others would wait as long
            for held, reply in zip(some, replies, strict=True):
                try:
                    if isinstance(reply, FairlaneError):
                        raise away or reply
                    if away:
                        raise away
                    self._driver.run(workers.settle_reap(self._queue, held.request_id, reply))
                except FairlaneError as error:
                    left.append(held)
                    away = error if is_redis_away(error) else None
                    self._warn([held], error, "settle")
        return left

    def note_unsettled(self, *, is_away: bool) -> None:
        """Notes what a draining worker holds and cannot settle, because Redis is unreachable."""
        if not is_away:
            self._unsettled.clear()
        for held in self._board.held() if is_away else ():
            self._unsettled[held.unit, held.version] = held

    def report_left(self, *, is_away: bool = False) -> None:
        """Logs what could not be settled or taken back without Redis, and what becomes of it.

        `is_away`: Redis has not answered since then.
        """
        left = {**self._left, **(self._unsettled if is_away else {})}
        self._left.clear()
        if not left:
            return
        count = sum(held.count for held in left.values())
        names = dict.fromkeys(held.request_id for held in left.values())
        left_s = max(held.deadline for held in left.values()) - clock.mono_s()
        when = f"when the leases expire, in {left_s:.0f} s at the latest, " if left_s > 0 else ""
        _log.warning(
            "Redis does not answer: %s of request %s not settled; %sanother worker takes them",
            plural(count, "sub-request"),
            f"{join_names([*names])} {'is' if count == 1 else 'are'}",
            when,
        )

    def timed_out(self, request_id: str) -> None:
        """Counts a killed call as a timeout in the queue's statistics, if Redis answers."""
        try:
            self._driver.run(tally_timeout(self._queue, request_id))
        except FairlaneError:
            return

    def _take_back(self, some: list[Held], calls: list[Call[Any]]) -> None:
        """Takes leases back; if that fails, a lease expires, and the leader takes it back."""
        try:
            replies = self._driver.run(send_all(calls))
        except FairlaneError as error:
            replies = [error] * len(calls)
        away: FairlaneError | None = None
        for held, reply in zip(some, replies, strict=True):
            try:
                if isinstance(reply, FairlaneError):
                    raise away or reply
                if away:
                    raise away
                self._driver.run(workers.settle_reap(self._queue, held.request_id, reply))
            except FairlaneError as error:
                if is_redis_away(error):
                    away = error
                    self._left[held.unit, held.version] = held
                    continue
                what = f"a lease of request {held.request_id}"
                _log.warning("could not take back %s: %s", what, error)
