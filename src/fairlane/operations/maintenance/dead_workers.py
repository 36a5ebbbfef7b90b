"""Finds workers that may be dead, and takes back the leases of a dead worker."""

from __future__ import annotations

from typing import NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError
from fairlane.operations.batching import TOGETHER, call_each
from fairlane.operations.lease.leases import reap
from fairlane.operations.lease.tokens import parse
from fairlane.operations.maintenance.registry import (
    NOW,
    goes_on,
    settle_reaps,
    unregister_worker,
)
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

LATEST_MS = 2 * settings.LATE_MS  # a worker with an older beat is stopped, cut off or dead


class Late(NamedTuple):
    """A worker whose beat is late."""

    worker: str
    started: str
    host: str


def is_late(age_ms: float) -> bool:
    """Returns True if the last heartbeat is so old that the worker is stopped, cut off or dead."""
    return age_ms > LATEST_MS


def late_workers(queue: str) -> Operation[list[Late]]:
    """Returns at most 100 workers whose beat is old; forgets workers without a beat for a TTL."""
    time, beats = yield Batch(
        [Command(b"TIME"), Command(b"ZRANGE", keys.workers(queue), 0, 99, b"WITHSCORES")]
    )
    before = time_ms(time) - settings.PROBE_AFTER_MS
    names = [
        name.decode()
        for name, beaten in zip(beats[::2], beats[1::2], strict=True)
        if int(float(beaten)) < before
    ]
    if not names:
        return []
    lives = yield Batch(
        [Command(b"HMGET", keys.worker(queue, name), b"started", b"host") for name in names]
    )
    yield library().expire_workers((keys.workers(queue),), ttl=settings.WORKER_TTL_MS)
    return [
        Late(name, started.decode(), (host or b"").decode())
        for name, (started, host) in zip(names, lives, strict=True)
        if started
    ]


def take_over(queue: str, worker: str, started: str) -> Operation[int]:
    """Takes back what a dead worker held, then forgets the worker; returns how many requests.

    Takes back its leases, and mints again the tokens that it popped and had not used. That costs a
    call for each request that the worker held: it notes in Redis which tokens it takes before it
    uses them. A request that can't be read is skipped: the audit finds its expired lease. The error
    of a shard that takes no tokens is raised after the worker is forgotten.
    """
    fields = yield Command(b"HGETALL", keys.taken(queue, worker))
    wanted: dict[str, list[str]] = {}
    for raw in (token for tokens in fields[1::2] for token in tokens.split()):
        if (token := parse(raw)) is not None:
            wanted.setdefault(token.request_id, []).extend((token.k, token.g))
    todo = list(wanted)
    error: FairlaneError | None = None
    while todo:
        part, todo = todo[:TOGETHER], todo[TOGETHER:]
        calls = [
            reap(queue, name, worker=worker, started=started, missing=wanted[name]) for name in part
        ]
        replies = dict(zip(part, (yield from call_each(calls)), strict=True))
        try:
            yield from settle_reaps(queue, replies)
        except FairlaneError as failure:  # of a shard that takes no tokens: the audit mints again
            error = error or failure
        for name, reply in replies.items():
            if isinstance(reply, FairlaneError):
                continue
            if goes_on(reply) and reply.look_ms == NOW:
                todo.append(name)  # the worker held more than one call takes back
    yield from unregister_worker(queue, worker, started)
    if error is not None:
        raise error
    return len(wanted)
