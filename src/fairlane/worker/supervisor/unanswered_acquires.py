"""Acquires whose reply a unit did not receive: Redis may have granted them.

The unit's op is on the lease board, so the supervisor sends the same acquire again and gives back
what it is granted.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from fairlane.common import clock
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations.lease import tokens
from fairlane.operations.lease.leases import acquire, acquire_call, give_back, parse_acquired
from fairlane.operations.maintenance import registry
from fairlane.protocol.steps import Batch
from fairlane.worker.supervisor.batches import AGAIN_S, AT_MOST, is_redis_away, send_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.drivers.sync.driver import SyncDriver
    from fairlane.model import Slice, Token
    from fairlane.protocol.steps import Operation
    from fairlane.worker.lease_board import LeaseBoard, LeaseRecord

_log = logging.getLogger("fairlane.worker")


class UnansweredAcquires:
    """Returns to Redis what unanswered acquires were granted."""

    def __init__(
        self, driver: SyncDriver, queue: str, worker: str, started: str, board: LeaseBoard
    ) -> None:
        self._driver, self._queue, self._board = driver, queue, board
        self._worker, self._started = worker, started
        self._next_at = 0.0

    def put_back(self, records: Sequence[LeaseRecord]) -> None:
        """Gives back what was or would be granted to acquires of processes that died.

        The reply did not reach the board, so the same acquire is sent again. The first one is
        stale if it arrives later.
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
            except FairlaneError as error:  # then the leader finds it
                what = f"request {token.request_id}"
                _log.warning("could not put back a token of %s: %s", what, error)
                is_away = is_redis_away(error)

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
            except RedisUnreachable:  # it is asked again
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
        for (record, token, op), reply in zip(asked, replies, strict=True):
            is_error = isinstance(reply, FairlaneError)
            yield (
                record,
                reply if is_error else self._undo(token, *parse_acquired(token, op, reply)),
            )

    def _put_back(self, token: Token, op: bytes) -> Operation[None]:
        word, taken, rest = yield from acquire(token, self._worker, self._started, 1, op=op)
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
