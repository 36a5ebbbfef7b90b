"""Handles acquires whose reply a unit did not receive: Redis may have granted them.

The op of each acquire or exchange is on the lease board. So the supervisor sends the same one
again, and gives back the leases that it gets.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations import tokens
from fairlane.operations.follow_up import follow_up
from fairlane.operations.lease import acquire, acquire_call, exchange, exchange_unit, give_back
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch
from fairlane.worker.log.repeats import Repeats, is_redis_away
from fairlane.worker.supervisor.batches import AGAIN_S, AT_MOST, send_all
from fairlane.worker.unit.dispatch import FollowUps
from fairlane.worker.unit.exchange import add_rest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.model import Token
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation
    from fairlane.worker.lease_board import LeaseBoard, LeaseRecord

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
        try:
            replies = self._driver.run(send_all(calls, math.inf))
        except FairlaneError as error:
            replies = [error] * len(calls)
        for (record, token, op), call, raw in zip(asked, calls, replies, strict=True):
            is_error = isinstance(raw, FairlaneError)
            yield record, raw if is_error else self._undo(token, op, call.reply(raw))

    def _put_back_exchanged(self, unit: int, op: bytes) -> Operation[None]:
        """Returns the leases of an exchange; if it arrives later, it acquires nothing."""
        sender = exchange_unit(self._queue, self._worker, self._started, unit)
        raw = yield exchange(sender, op, ())
        if raw is None:
            return
        read = library().acquire.reply
        reply = library().exchange.reply(raw)
        rest = FollowUps(self._queue)
        add_rest(rest, reply)
        if calls := rest.calls():
            yield Batch(calls)
        for word, acquired in zip(reply.tokens, reply.acquired, strict=True):
            token = tokens.parse(word)
            if token is None:
                continue
            if not acquired:
                yield from self._put_back(token, op)
            elif (found := read(acquired)).is_ok:
                yield from self._undo(token, op, found)

    def _put_back(self, token: Token, op: bytes) -> Operation[None]:
        reply, _ = yield from acquire(token, self._worker, self._started, 1, op=op)
        yield from self._undo(token, op, reply)

    def _undo(self, token: Token, op: bytes, reply: Reply) -> Operation[None]:
        """Follows up the reply of an acquire, and returns the lease that it granted."""
        if calls := follow_up(self._queue, (token.request_id, reply)):
            yield Batch(calls)
        if reply.is_ok:
            call = give_back(
                token.request_id, token.k, reply.fence.decode(), op.decode(), is_unbegun=True
            )
            returned = yield from call.run()
            if calls := follow_up(self._queue, (token.request_id, returned)):
                yield Batch(calls)
