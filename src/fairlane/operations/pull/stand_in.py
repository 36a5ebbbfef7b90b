"""Keeps a queue whole that no worker serves: a program that takes sub-requests does what is due.

A worker's heartbeat gives one worker the maintenance lock and names what is due. `stand_in` does
the same for a program without a heartbeat, but only while no worker beats. So the same duties run
as in a leading worker, by the same operations, when the program takes something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.operations.create import admission
from fairlane.operations.flows.hand_over import look_after_and_feed
from fairlane.operations.lease.shards import served
from fairlane.operations.maintenance import registry
from fairlane.operations.maintenance.auditor import Audit
from fairlane.operations.maintenance.log_readers import trim
from fairlane.operations.schedules.fire import fire
from fairlane.protocol import keys
from fairlane.protocol.scripts import library

if TYPE_CHECKING:
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

_REST_MS = int(settings.AUDIT_S * 1000)
_REST_MOST_MS = int(settings.AUDIT_REST_MOST_S * 1000)


class Upkeep:
    """The maintenance of one queue by programs that take from it; any thread may use it."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        # One thread at a time takes the audit, because a list's pop and append are atomic.
        self._audits = [Audit(queue)]
        self._rest_ms = _REST_MS

    def do_due(self, taker: str) -> Operation[tuple[Reply, FairlaneError | None]]:
        """Does what is due if no worker lives; returns how the queue stands.

        An error of a duty stops neither the other duties nor the caller: it is returned. Raises
        RedisError if the queue can't be read.
        """
        reply = yield from self._ask(taker)
        failure: FairlaneError | None = None
        for duty in self._due(reply) if reply.leads else ():
            try:
                yield from duty
            except FairlaneError as error:
                failure = failure or error
        return reply, failure

    def _ask(self, taker: str) -> Operation[Reply]:
        names = (
            *(keys.workers(self._queue), keys.active(self._queue), keys.delayed(self._queue)),
            *(keys.conf(self._queue), keys.schedules(self._queue)[1], keys.firing(self._queue)),
        )
        call = library().stand_in(names, id=taker, lock_ms=settings.LOCK_MS, rest_ms=self._rest_ms)
        return (yield from call.run())

    def _due(self, reply: Reply) -> list[Operation[object]]:
        """Returns the duties of a leader that are due."""
        shards = served(reply.shards, reply.left)
        duties: list[Operation[object]] = []
        if shards != (0,) or 0 < reply.delayed_due <= reply.now:  # no reply has the shards' slots
            duties.append(registry.promote(self._queue, shards))
        if 0 < reply.active_due <= reply.now:
            duties += [look_after_and_feed(self._queue), admission.recount(self._queue)]
        if 0 < reply.tick_due <= reply.now:
            duties.append(fire(self._queue))
        if reply.audits:
            duties += [self._audit(), trim(self._queue)]
        return duties

    def _audit(self) -> Operation[None]:
        try:
            audit = self._audits.pop()
        except IndexError:  # another thread audits
            return
        began = clock.mono_s()
        try:
            yield from audit.run(settings.TOKEN_GRACE_MS)
        finally:
            self._audits.append(audit)
            took_ms = int(settings.AUDIT_REST_FACTOR * 1000 * (clock.mono_s() - began))
            self._rest_ms = max(_REST_MS, min(_REST_MOST_MS, took_ms))
