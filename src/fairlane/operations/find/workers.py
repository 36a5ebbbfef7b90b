"""The workers of a queue: where each one runs, since when, its last beat, and what it holds.

A page costs one HMGET a worker, 100 in a round trip.
"""

from __future__ import annotations

import re

from fairlane.found import WorkerPage, WorkerState
from fairlane.operations.batching import run_all
from fairlane.operations.control.call_progress import read_holds, read_pace, read_release
from fairlane.operations.find.requests import check_page
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.protocol import keys
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

_FIELDS = (b"host", b"pid", b"started", b"holds")
_LEASES = re.compile(r"([0-9]{1,9}) leases")


def list_workers(queue: str, limit: int = 1000) -> Operation[WorkerPage]:
    """Returns the workers with the newest beats, at most `limit` (1 to 1,000).

    A worker that unregistered is not among them. Raises InvalidArgument.
    """
    check_page(limit)
    key = keys.workers(queue)
    newest = Command(b"ZRANGE", key, 0, limit - 1, b"REV", b"WITHSCORES")
    beats, count, time = yield Batch([newest, Command(b"ZCARD", key), Command(b"TIME")])
    names = [name.decode("utf-8", "replace") for name in beats[::2]]
    records = yield from run_all(
        [Command(b"HMGET", keys.worker(queue, name), *_FIELDS) for name in names]
    )
    now_ms = time_ms(time)
    found = [
        _state(name, int(float(beat)), record, now_ms)
        for name, beat, record in zip(names, beats[1::2], records, strict=True)
    ]
    found.sort(key=lambda one: (not one.is_alive, one.id))
    return WorkerPage(found, max(0, count - len(found)))


def _state(name: str, beat_ms: int, record: list[bytes | None], now_ms: int) -> WorkerState:
    host, pid, started, holds = ((value or b"").decode("utf-8", "replace") for value in record)
    age_ms = max(0, now_ms - beat_ms)
    leases, pace = _LEASES.match(holds), read_pace(holds)
    return WorkerState(
        id=name,
        host=host.partition(" ")[0],  # worker/host_identity.py: the name, then what is unique
        pid=_number(pid),
        started_ms=_number(started),
        beat_ms=beat_ms,
        beat_age_ms=age_ms,
        is_alive=not is_late(age_ms),
        leases=int(leases[1]) if leases else 0,
        calls=tuple(read_holds(holds)),
        units=pace.units,
        per_s=pace.per_s,
        release=read_release(holds),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
