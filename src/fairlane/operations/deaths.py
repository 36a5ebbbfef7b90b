"""Workers that may be dead: who is late, and what becomes of what a dead one held."""

from __future__ import annotations

from typing import NamedTuple

from .. import keys, settings
from ..errors import FairlaneError
from ..scripts import library
from ..steps import Batch, Command, Operation
from .maintain import settle_reap, unregister
from .together import each
from .work import reap


class Late(NamedTuple):
    """A worker whose beat is late."""

    worker: str
    started: str
    host: str


def late_workers(queue: str) -> Operation[list[Late]]:
    """Workers to knock at, at most 100, as their beat is old; forgets those silent for a TTL."""
    (seconds, micros), beats = yield Batch(
        [Command(b"TIME"), Command(b"ZRANGE", keys.workers(queue), 0, 99, b"WITHSCORES")]
    )
    before = int(seconds) * 1000 + int(micros) // 1000 - settings.KNOCK_MS
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
    yield library().expire((keys.workers(queue),), ttl=settings.WORKER_TTL_MS)
    return [
        Late(name, started.decode(), (host or b"").decode())
        for name, (started, host) in zip(names, lives, strict=True)
        if started
    ]


def take_over(queue: str, worker: str, started: str) -> Operation[int]:
    """Takes every lease from a dead worker, then forgets it; returns requests looked at.

    A request that can't be read is passed over.
    """
    ids = yield Command(b"ZRANGE", keys.active(queue), 0, -1)
    todo = [name.decode("utf-8", "replace") for name in ids]
    looked = len(todo)
    while todo:
        part, todo = todo[:100], todo[100:]
        replies = yield from each(
            [reap(queue, request_id, worker=worker, started=started) for request_id in part]
        )
        for request_id, reply in zip(part, replies, strict=True):
            if isinstance(reply, FairlaneError):
                continue
            yield from settle_reap(queue, request_id, reply)
            if reply[0] == b"ok" and reply[1] == 1:  # it held more than one bite
                todo.append(request_id)
    yield from unregister(queue, worker, started)
    return looked
