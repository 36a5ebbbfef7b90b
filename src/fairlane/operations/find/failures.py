"""How sub-requests of a request or of a queue failed: the dead ones by fingerprint.

It costs one call for 1,000 dead sub-requests, without their bodies, up to MOST_GROUPED. Those of a
request also count what waits for a retry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.found import FailureGroup, QueueErrors, RequestErrors
from fairlane.operations.control.dead_letters import (
    count_dead,
    group_dead,
    requests_with_dead,
)
from fairlane.operations.control.request_state import moment, progress, waiting_retries

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

MOST_GROUPED = 100_000  # dead sub-requests of one request, or of a queue, that are grouped
_EXAMPLES = 5  # requests that are named of a group


def request_errors(request_id: str, most: int = MOST_GROUPED) -> Operation[RequestErrors]:
    """Returns the failures of a request; it groups `most` dead ones. Raises RequestNotFound."""
    counts = yield from progress(request_id)
    retries, due_ms = yield from waiting_retries(request_id)
    groups = yield from group_dead(request_id, most)
    kept = yield from count_dead(request_id)
    more = max(0, kept - sum(group.count for group in groups))
    now_ms = yield from moment(request_id)
    return RequestErrors(counts, groups, more, retries, due_ms, now_ms)


def queue_errors(queue: str, most: int = MOST_GROUPED) -> Operation[QueueErrors]:
    """Returns the failures of the requests of a queue: unfinished ones first, then the newest.

    Reads the requests that requests_with_dead returns, until `most` dead ones were read.
    """
    having, unread = yield from requests_with_dead(queue)
    groups: dict[str, FailureGroup] = {}
    read = 0
    for one in having:
        if read >= most:
            break
        for group in (yield from group_dead(one.id, most - read)):
            read += group.count
            known = groups.get(group.fingerprint)
            if known is None:
                known = groups[group.fingerprint] = FailureGroup(
                    group.fingerprint, group.reason, group.headline, group.where,
                    group.first_ms, group.last_ms,
                )  # fmt: skip
            known.count += group.count
            known.requests += 1
            known.first_ms = min(known.first_ms, group.first_ms)
            known.last_ms = max(known.last_ms, group.last_ms)
            if len(known.examples) < _EXAMPLES:
                known.examples.append((one.id, group.indexes[0]))
    found = sorted(groups.values(), key=lambda one: (-one.count, one.first_ms))
    more = sum(one.dead for one in having) - read
    return QueueErrors(found, max(0, more), unread)
