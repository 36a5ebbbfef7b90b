"""Unfinished requests in an order: by urgency for `status`, by that or by a choice for `list`."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import InvalidArgument
from fairlane.found import ENDED, RUNNING
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all
from fairlane.operations.control.request_state import progress_of
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Completion, Progress
    from fairlane.operations.find.waiting import Waiting
    from fairlane.protocol.steps import Operation

SORTS = ("priority", "submitted", "waiting", "state")
_FIELDS = ("state", "queue", "priority", "born", "fresh", "tags", "tenant")
_STATES = (*RUNNING, *ENDED)

OrderKey = tuple[int, int, int, str]  # what is sorted by; priority; when it was submitted; its id


class Unfinished(NamedTuple):
    """An unfinished request; these tuples are ordered by urgency."""

    priority: int
    submitted_ms: int
    id: str
    state: str
    tags: str = ""
    tenant: str = ""
    waiting: int = 0


class Order(NamedTuple):
    """What a list is sorted by: one of SORTS, with - in front if it falls; "" = by urgency.

    Equals are sorted by priority, then by age.
    """

    sort: str = ""

    @classmethod
    def of(cls, sort: object) -> Order:
        """Returns the order of this name. Raises InvalidArgument."""
        known = ["", *SORTS, *(f"-{one}" for one in SORTS)]
        if sort not in known:
            near = get_close_matches(str(sort), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write {', '.join(SORTS)}"
            raise InvalidArgument(f"sort {sort!r} is not valid: {hint}")
        return cls(str(sort))

    def key(self, one: Unfinished | Completion) -> OrderKey:
        """Returns what a request is sorted by."""
        name = self.sort.removeprefix("-")
        first = 0
        if name == "state":
            first = _STATES.index(one.state) if one.state in _STATES else len(_STATES)
        elif name == "waiting":
            first = one.waiting if isinstance(one, Unfinished) else 0
        elif name:
            first = one.priority if name == "priority" else one.submitted_ms
        sign = -1 if self.sort.startswith("-") else 1
        return (sign * first, one.priority, one.submitted_ms, one.id)


def most_urgent(
    queue: str, waiting: Waiting, names: Iterable[bytes]
) -> Operation[list[Unfinished]]:
    """Returns the unfinished requests among these tokens and entries of `active`.

    The most urgent comes first. It costs one HMGET a request, 100 in a round trip.
    """
    listed = [name.decode("utf-8", "replace") for name in names]
    ids = list(dict.fromkeys([*waiting.request_ids(), *listed]))
    return (yield from unfinished(queue, ids, frozenset(listed)))


def unfinished(
    queue: str, ids: Sequence[str], unretired: frozenset[str]
) -> Operation[list[Unfinished]]:
    """Returns the requests of this queue among `ids`, the most urgent first.

    Ended ones are left out, unless they are `unretired`: still in `active`.
    """
    found = []
    replies = yield from run_all([hmget(name, *_FIELDS) for name in ids])
    for name, reply in zip(ids, replies, strict=True):
        state, home, priority, born, fresh, tags, tenant = parse_fields(_FIELDS, reply)
        is_over = state in ENDED_STATES and name not in unretired
        if home == queue and state != "abandoned" and not is_over:
            more = (state, tags, tenant, int(fresh or 0))
            found.append(Unfinished(int(priority or 0), int(born or 0), name, *more))
    return sorted(found)


def read_progress(rows: Iterable[Unfinished]) -> Operation[list[Progress]]:
    """Returns the counts of these requests in their order, without those that are gone."""
    ids = [row.id for row in rows]
    hashes = yield from run_all([Command(b"HGETALL", keys.request_hash(name)) for name in ids])
    counts = (progress_of(name, fields, 0) for name, fields in zip(ids, hashes, strict=True))
    found = [one for one in counts if one is not None]
    # While all that is left waits for its first delivery, no lease has any.
    busy = [one.id for one in found if one.state != "active" or one.left > one.waiting]
    replies = yield from run_all([Command(b"ZCARD", keys.leases(name)) for name in busy])
    held = dict(zip(busy, replies, strict=True))
    return [replace(one, held=held[one.id]) if held.get(one.id) else one for one in found]
