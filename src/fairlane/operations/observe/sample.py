"""Chooses the unfinished requests that a snapshot reads, and reads their counts.

All are read if there are at most MOST_REQUESTS. Otherwise these are read: requests of the first
tokens of every lane, the first entries of `active`, and what workers took last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_all
from fairlane.operations.blockers.demand import FIELDS
from fairlane.operations.lease.tokens import parse
from fairlane.operations.observe.model import RequestSample
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.found import WorkerState
    from fairlane.operations.blockers.demand import OpenFields
    from fairlane.operations.find.waiting import Waiting
    from fairlane.protocol.steps import Operation

CONF = (b"paused_until", b"rate", b"max_waiting", b"waiting")
MOST_REQUESTS = 500
MOST_TOOK = 100  # workers whose last tokens are read
_MOST_PART = MOST_REQUESTS // 3  # of each kind, if there are more requests
_SHOWN_TOOK = 8  # requests of one worker
_FIELDS = (*FIELDS, "priority", "born", "cancelled", "tenant", "tags")


class Sample(NamedTuple):
    """The requests that were read, and the same as the demand is computed from."""

    requests: list[RequestSample]
    fields: list[OpenFields]


def read_took(queue: str, workers: Sequence[WorkerState]) -> Operation[dict[str, list[str]]]:
    """Returns worker -> the requests of the tokens that its units took last, if it holds leases."""
    busy = [one.id for one in workers if one.is_alive and one.leases][:MOST_TOOK]
    rows = yield from run_all([Command(b"HGETALL", keys.taken(queue, name)) for name in busy])
    return {name: _requests_in(row) for name, row in zip(busy, rows, strict=True)}


def _requests_in(row: list[bytes]) -> list[str]:
    parsed = (parse(token) for tokens in row[1::2] for token in tokens.split())
    return list(dict.fromkeys(one.request_id for one in parsed if one))[:_SHOWN_TOOK]


def read_sample(
    queue: str, tokens: Waiting, took: dict[str, list[str]], unfinished: int
) -> Operation[Sample]:
    """Returns the counts of the requests that are chosen, the most urgent first."""
    is_all = unfinished <= MOST_REQUESTS
    most = MOST_REQUESTS if is_all else _MOST_PART
    names = yield Command(b"ZRANGE", keys.active(queue), 0, most - 1)
    listed = [name.decode("utf-8", "replace") for name in names]
    taken = [name for row in took.values() for name in row][:most]
    waiting = [] if is_all else tokens.request_ids()[:most]
    return (yield from _read(queue, list(dict.fromkeys([*listed, *taken, *waiting]))))


def _read(queue: str, ids: Sequence[str]) -> Operation[Sample]:
    rows = yield from run_all([hmget(name, *_FIELDS) for name in ids])
    found = []
    for name, row in zip(ids, rows, strict=True):
        fields = dict(zip(_FIELDS, parse_fields(_FIELDS, row), strict=True))
        is_over = fields["state"] in {*ENDED_STATES, "abandoned", ""}
        if fields["queue"] == queue and not is_over and fields["limit"]:
            found.append((name, fields))
    held = yield from run_all([Command(b"ZCARD", keys.leases(name)) for name, _ in found])
    both = [(name, fields, count) for (name, fields), count in zip(found, held, strict=True)]
    requests = sorted(map(_request, both), key=lambda one: (one.priority, one.submitted_ms))
    return Sample(requests, both)


def _request(row: OpenFields) -> RequestSample:
    name, fields, held = row

    def number(field: str) -> int:
        return int(fields[field] or 0)

    settled = number("done") + number("dead") + number("cancelled")
    return RequestSample(
        id=name,
        priority=number("priority"),
        state=fields["state"],
        submitted_ms=number("born"),
        total=number("total"),
        done=number("done"),
        dead=number("dead"),
        left=max(0, number("total") - settled),
        waiting=number("fresh"),
        held=held,
        limit=number("limit"),
        opens_ms=number("opens"),
        tenant=fields["tenant"],
        tags=tuple(filter(None, fields["tags"].split(","))),
    )


def count_active(queue: str) -> Batch:
    """Returns the batch that counts requests and endings, and reads the settings and the time."""
    return Batch(
        [
            Command(b"ZCARD", keys.active(queue)),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"HMGET", keys.conf(queue), *CONF),
            Command(b"TIME"),
        ]
    )
