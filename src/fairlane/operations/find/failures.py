"""How sub-requests of a request failed: the dead ones by fingerprint, and what waits for a retry.

It costs one call for 1,000 dead sub-requests, without their bodies, up to MOST_GROUPED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.found import RequestErrors
from fairlane.operations.control.dead_letters import count_dead, group_dead
from fairlane.operations.control.request_state import moment, progress, waiting_retries

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

MOST_GROUPED = 100_000  # dead sub-requests of one request that are grouped


def request_errors(request_id: str) -> Operation[RequestErrors]:
    """Returns the failures of a request. Raises RequestNotFound."""
    counts = yield from progress(request_id)
    retries, due_ms = yield from waiting_retries(request_id)
    groups = yield from group_dead(request_id, MOST_GROUPED)
    kept = yield from count_dead(request_id)
    more = max(0, kept - sum(group.count for group in groups))
    now_ms = yield from moment(request_id)
    return RequestErrors(counts, groups, more, retries, due_ms, now_ms)
