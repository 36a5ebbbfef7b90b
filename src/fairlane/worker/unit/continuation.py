"""Settles a lease and acquires its permit's next slice in one round trip.

Only on a single server, which has all keys, and only if no other lane has its turn: the script
reads the lanes. For slow handlers, which take tokens one by one; quick ones share round trips.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.common import clock
from fairlane.errors import RedisUnfit
from fairlane.operations.lease.leases import (
    complete_and_acquire,
    going_on,
    new_op,
    slice_of,
)
from fairlane.protocol.scripts import library
from fairlane.worker.unit.leases import Lease, hold

if TYPE_CHECKING:
    from fairlane.operations.lease.leases import Part
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation
    from fairlane.worker.unit.dispatch import FollowUps
    from fairlane.worker.unit.unit import Unit


def is_likely(unit: Unit, lease: Lease, lane: bytes) -> bool:
    """Returns True if a next slice is likely, and a pop would take one token.

    A durable request must confirm each slice before the next. `lane` is the key of the list that
    the lease's token came from.
    """
    taken, outcome = lease.slice, lease.outcome
    return (
        bool(lane and taken.waiting and unit.may_continue)
        and outcome is not None
        and not outcome.is_over
        and not taken.durable
        and not unit.record.is_draining
        and unit.turns.is_one
        and unit.sizer.takes_one(len(unit.free) + 1)
    )


def settle_and_acquire(
    unit: Unit, lease: Lease, part: Part, returned: FollowUps
) -> Operation[tuple[Reply | None, Lease | None]]:
    """Returns the reply of complete, and the lease of the next slice if there is one.

    Without a reply the lease is not settled: the server is a cluster, or refused to run the script.
    """
    taken, record = lease.slice, lease.record
    sent, op, asked = clock.mono_s(), new_op(), unit.sizer.entries(taken.request_id)
    # If this process dies before the reply, the supervisor sends the acquire again.
    record.begin_acquire(going_on(taken), op)
    try:
        replies = yield complete_and_acquire(
            taken, part, returned.lane, op, unit.worker, unit.started, asked
        )
    except RedisUnfit:  # the user may not read the lanes, or one is no list: nothing was done
        replies = None
    settled = following = None
    if replies is None:
        unit.may_continue = False
    else:
        both = library().complete_and_acquire.reply(replies)
        settled = library().complete.reply(both.completed)
        if both.acquired is not None:
            acquired = library().acquire.reply(both.acquired)
            following = slice_of(going_on(taken), op, acquired)
            if following is not None:
                record.release()  # a reader must never get half of one lease and half of another
                hold(record, following, sent)
            returned.add(taken.request_id, acquired)
    record.end_acquire()
    return settled, None if following is None else Lease(following, record, asked)
