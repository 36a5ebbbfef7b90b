"""What keeps a queue whole: beats, promoter, reaper, auditor. All of it may run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import keys, settings
from ..scripts import library
from ..steps import Batch, Command, Operation
from .control import as_text
from .tokens import insert, retire
from .work import reap

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROMOTED = 1000  # tokens a call


def register(queue: str, worker: str, host: str, pid: int, started: str) -> Operation[list[bytes]]:
    """Enters a worker: [ok, former], or [taken, host, pid] when the name beats elsewhere.

    `former` is the start of the life that had the name before; empty when there was none.
    """
    former = yield Command(b"HGET", keys.worker(queue, worker), b"started")
    reply: list[bytes] = yield library().register(
        (keys.workers(queue), keys.worker(queue, worker)),
        id=worker,
        host=host,
        pid=pid,
        started=started,
        ttl=settings.WORKER_TTL_MS,
        late=settings.LATE_MS,
    )
    return [*reply, former or b""] if reply[0] == b"ok" else reply


def unregister(queue: str, worker: str, started: str) -> Operation[int]:
    """A worker leaves; 1 if it was there."""
    names = (keys.workers(queue), keys.worker(queue, worker), keys.conf(queue))
    left: int = yield library().unregister(names, id=worker, started=started)
    return left


def wake(queue: str, worker: str, units: int) -> Operation[None]:
    """Wakes a draining worker's units from their blocking pops; what is left over expires."""
    key = keys.wake(queue, worker)
    yield Batch(
        [
            Command(b"LPUSH", key, *([b"wake"] * units)),
            Command(b"PEXPIRE", key, 2 * settings.BLOCK_MS),
        ]
    )


def beat(queue: str, worker: str, started: str, holds: str) -> Operation[list[Any]]:
    """Renews a worker: [ok, leads, now, active_due, delayed_due, oldest_beat].

    Or [drain | unknown | replaced]: see beat.lua.
    """
    names = (
        *(keys.workers(queue), keys.worker(queue, worker)),
        *(keys.active(queue), keys.delayed(queue), keys.conf(queue)),
    )
    reply: list[Any] = yield library().beat(
        names,
        id=worker,
        started=started,
        ttl=settings.WORKER_TTL_MS,
        lock_ms=settings.LOCK_MS,
        holds=holds,
    )
    return reply


def promote(queue: str) -> Operation[int]:
    """Moves every due token to its lane; returns how many."""
    moved: int = 0
    while True:
        names = (keys.delayed(queue), *keys.lanes(queue))
        count, _ = yield library().promote(names, most=_PROMOTED)
        moved += count
        if count < _PROMOTED:
            return moved


def look_after(queue: str) -> Operation[int]:
    """Looks at the requests that are due to be looked at, a bounded number; returns how many."""
    (seconds, _), due = yield Batch(
        [
            Command(b"TIME"),
            Command(b"ZRANGE", keys.active(queue), 0, settings.MAINTAIN_MOST - 1, b"WITHSCORES"),
        ]
    )
    now = int(seconds) * 1000
    count = 0
    for name, score in zip(due[::2], due[1::2], strict=True):
        if int(float(score)) > now + 1000:
            break
        yield from look_at(queue, name.decode(), int(float(score)), now)
        count += 1
    return count


def look_at(queue: str, request_id: str, score: int, now: int) -> Operation[None]:
    """One unfinished request: expired leases, lost tokens, an unlogged end, a lost producer."""
    reply = yield reap(request_id)
    if reply[0] == b"gone":
        marked = yield library().abandon(
            keys.request_keys(request_id), seen=score, ttl=settings.MARKER_MS
        )
        if marked[0] == b"ok":
            yield library().drop((keys.active(queue),), id=request_id, seen=score)
        return
    yield from settle_reap(queue, request_id, reply)
    if reply[0] == b"ended":
        return
    missing = yield from missing_tokens(queue, request_id)
    if missing:
        reply = yield reap(request_id, missing=missing)
        yield from settle_reap(queue, request_id, reply)
    look = reply[1] if reply[0] == b"ok" and reply[1] else settings.AUDIT_MS
    yield Command(
        b"ZADD", keys.active(queue), b"XX", now + min(look, settings.AUDIT_MS), request_id
    )


def settle_reap(queue: str, request_id: str, reply: list[Any]) -> Operation[None]:
    """Dispatches what a reap minted, or logs the ending it found."""
    if reply[0] == b"ended":
        yield retire(queue, request_id, reply[1])
    elif reply[0] == b"ok":
        calls = insert(queue, request_id, reply[-1])
        if calls:
            yield Batch(calls)


def missing_tokens(queue: str, request_id: str) -> Operation[list[str]]:
    """Queued permits whose token is nowhere, a grace after they were due: k, g, k, g ...

    `delayed` is asked before the lane: a token moves only in that direction, so one that is
    missing in both was in neither. A wrong guess (it is in a worker's hands) costs one stale token.
    """
    fields, (seconds, micros) = yield Batch(
        [Command(b"HGETALL", keys.permits(request_id)), Command(b"TIME")]
    )
    now = int(seconds) * 1000 + int(micros) // 1000
    waiting = []
    for k, text in as_text(fields).items():
        if text.startswith("q:"):
            _, g, since, lane, due = text.split(":")
            if now - max(int(since), int(due)) > settings.TOKEN_GRACE_MS:
                waiting.append((k, g, lane, f"{request_id}#{k}.{g}"))
    if not waiting:
        return []
    delayed = yield Batch(
        [
            Command(b"ZSCORE", keys.delayed(queue), f"{lane}|{token}")
            for _, _, lane, token in waiting
        ]
    )
    found = yield Batch(
        [Command(b"LPOS", keys.lanes(queue)[int(lane)], token) for _, _, lane, token in waiting]
    )
    lost = [
        row
        for row, due, place in zip(waiting, delayed, found, strict=True)
        if due is None and place is None
    ]
    return [part for k, g, _, _ in lost for part in (k, g)]


def late_workers(queue: str) -> Operation[list[tuple[str, str]]]:
    """Workers whose beat is late: (worker, started); forgets those silent for a whole TTL."""
    seconds, _ = yield Command(b"TIME")
    late = yield Command(
        b"ZRANGEBYSCORE",
        keys.workers(queue),
        b"-inf",
        int(seconds) * 1000 - settings.LATE_MS,
        b"LIMIT",
        0,
        100,
    )
    if not late:
        return []
    started = yield Batch(
        [Command(b"HGET", keys.worker(queue, name.decode()), b"started") for name in late]
    )
    yield library().expire((keys.workers(queue),), ttl=settings.WORKER_TTL_MS)
    return [
        (name.decode(), life.decode()) for name, life in zip(late, started, strict=True) if life
    ]


def take_over(queue: str, worker: str, started: str) -> Operation[int]:
    """Takes every lease from a dead worker, then forgets it; returns requests touched."""
    ids = yield Command(b"ZRANGE", keys.active(queue), 0, -1)
    touched = 0
    for part in _parts(ids, 100):
        replies = yield Batch(
            [reap(name.decode(), worker=worker, started=started) for name in part]
        )
        for name, reply in zip(part, replies, strict=True):
            if reply[0] != b"gone":
                touched += 1
                yield from settle_reap(queue, name.decode(), reply)
    yield from unregister(queue, worker, started)
    return touched


def _parts(names: list[bytes], size: int) -> Iterable[list[bytes]]:
    return (names[i : i + size] for i in range(0, len(names), size))
