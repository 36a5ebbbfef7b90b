"""What keeps a queue whole: beats, promoter, reaper, auditor. All of it may run twice."""

from __future__ import annotations

from typing import Any, NamedTuple

from .. import keys, settings
from ..scripts import library
from ..steps import Batch, Command, Operation
from .control import as_text
from .tokens import insert, retire
from .work import reap

_PROMOTED = 1000  # tokens a call
_FEW = 20  # tokens looked up one by one
_PAGE = 1000  # tokens of a lane read at once


def register(queue: str, worker: str, host: str, pid: int, started: str) -> Operation[list[bytes]]:
    """Enters a worker: [ok, former], or [taken, host, pid] when the name beats elsewhere.

    `former` is the start of the life that had the name before on this host; empty when there was
    none. On another host it may well be alive and only silent: its leases are left to their time.
    """
    former, home = yield Command(b"HMGET", keys.worker(queue, worker), b"started", b"host")
    if home != host.encode():
        former = None
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


def look_after(queue: str, *, audit: bool = True) -> Operation[int]:
    """Looks at the requests that are due to be looked at, a bounded number; returns how many.

    With `audit` it also looks for their tokens, which costs more.
    """
    (seconds, _), due = yield Batch(
        [
            Command(b"TIME"),
            Command(b"ZRANGE", keys.active(queue), 0, settings.MAINTAIN_MOST - 1, b"WITHSCORES"),
        ]
    )
    now = int(seconds) * 1000
    count = 0
    suspects: list[Suspect] = []
    for name, score in zip(due[::2], due[1::2], strict=True):
        if int(float(score)) > now + 1000:
            break
        found = yield from look_at(queue, name.decode(), int(float(score)), now)
        if audit and found and len(suspects) < settings.AUDIT_MOST:
            suspects += yield from queued_long(name.decode())
        count += 1
    yield from mint_again(queue, suspects)
    return count


def look_at(queue: str, request_id: str, score: int, now: int) -> Operation[bool]:
    """One unfinished request: expired leases, an unlogged end, a lost producer.

    True if it goes on.
    """
    active = (keys.active(queue),)
    reply = yield reap(queue, request_id)
    if reply[0] == b"gone":
        marked = yield library().abandon(
            keys.request_keys(request_id), seen=score, ttl=settings.MARKER_MS
        )
        if marked[0] == b"ok":
            yield library().drop(active, id=request_id, seen=score)
        return False
    yield from settle_reap(queue, request_id, reply)
    if reply[0] != b"ok":  # ended, or the request of another queue
        yield library().drop(active, id=request_id, seen=score)
        return False
    look = min(reply[1] or settings.AUDIT_MS, settings.AUDIT_MS)
    yield Command(b"ZADD", keys.active(queue), b"XX", now + look, request_id)
    return True


def settle_reap(queue: str, request_id: str, reply: list[Any]) -> Operation[None]:
    """Dispatches what a reap minted, or logs the ending it found."""
    if reply[0] == b"ended":
        yield retire(queue, request_id, reply[1])
    elif reply[0] == b"ok":
        calls = insert(queue, request_id, reply[-1])
        if calls:
            yield Batch(calls)


class Suspect(NamedTuple):
    """A permit whose token has been on its way for long."""

    request_id: str
    k: str
    g: str
    lane: int

    @property
    def token(self) -> str:
        """What should be in its lane."""
        return f"{self.request_id}#{self.k}.{self.g}"


def queued_long(request_id: str) -> Operation[list[Suspect]]:
    """The permits that were queued a grace ago and still are."""
    fields, (seconds, micros) = yield Batch(
        [Command(b"HGETALL", keys.permits(request_id)), Command(b"TIME")]
    )
    now = int(seconds) * 1000 + int(micros) // 1000
    found = []
    for k, text in as_text(fields).items():
        if text.startswith("q:"):
            _, g, since, lane, due = text.split(":")
            if now - max(int(since), int(due)) > settings.TOKEN_GRACE_MS:
                found.append(Suspect(request_id, k, g, int(lane)))
    return found


def mint_again(queue: str, suspects: list[Suspect]) -> Operation[int]:
    """Mints those tokens again that are nowhere; returns how many.

    `delayed` is asked before the lane: a token moves only in that direction, so one that is
    missing in both was in neither. A wrong guess (it is in a worker's hands) costs one stale token.
    """
    if not suspects:
        return 0
    due = yield Batch(
        [
            Command(b"ZSCORE", keys.delayed(queue), f"{suspect.lane}|{suspect.token}")
            for suspect in suspects
        ]
    )
    waiting = [suspect for suspect, score in zip(suspects, due, strict=True) if score is None]
    lost: dict[str, list[str]] = {}
    for lane in sorted({suspect.lane for suspect in waiting}):
        here = [suspect for suspect in waiting if suspect.lane == lane]
        present = yield from _present(keys.lanes(queue)[lane], {one.token.encode() for one in here})
        for suspect in here:
            if suspect.token.encode() not in present:
                lost.setdefault(suspect.request_id, []).extend((suspect.k, suspect.g))
    for request_id, missing in lost.items():
        reply = yield reap(queue, request_id, missing=missing)
        yield from settle_reap(queue, request_id, reply)
    return sum(map(len, lost.values())) // 2


def _present(lane: bytes, tokens: set[bytes]) -> Operation[set[bytes]]:
    """Which of the tokens stand in the lane: by LPOS for a few, by reading all of it for many.

    Reading goes from the end where tokens come in, so that none can slip past the reader.
    """
    if len(tokens) <= _FEW:
        asked = sorted(tokens)
        places = yield Batch([Command(b"LPOS", lane, token, b"RANK", -1) for token in asked])
        return {token for token, place in zip(asked, places, strict=True) if place is not None}
    present: set[bytes] = set()
    first = 0
    while True:
        page = yield Command(b"LRANGE", lane, first, first + _PAGE - 1)
        present |= tokens.intersection(page)
        first += _PAGE
        if len(page) < _PAGE:
            return present


class Late(NamedTuple):
    """A worker whose beat is late."""

    worker: str
    started: str
    host: str


def late_workers(queue: str) -> Operation[list[Late]]:
    """Workers whose beat is late, at most 100; forgets those silent for a whole TTL."""
    (seconds, micros), beats = yield Batch(
        [Command(b"TIME"), Command(b"ZRANGE", keys.workers(queue), 0, 99, b"WITHSCORES")]
    )
    before = int(seconds) * 1000 + int(micros) // 1000 - settings.LATE_MS
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
    """Takes every lease from a dead worker, then forgets it; returns requests looked at."""
    ids = yield Command(b"ZRANGE", keys.active(queue), 0, -1)
    todo = [name.decode() for name in ids]
    looked = len(todo)
    while todo:
        part, todo = todo[:100], todo[100:]
        replies = yield Batch(
            [reap(queue, request_id, worker=worker, started=started) for request_id in part]
        )
        for request_id, reply in zip(part, replies, strict=True):
            yield from settle_reap(queue, request_id, reply)
            if reply[0] == b"ok" and reply[1] == 1:  # it held more than one bite
                todo.append(request_id)
    yield from unregister(queue, worker, started)
    return looked
