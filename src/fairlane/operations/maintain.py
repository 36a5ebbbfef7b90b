"""What keeps a queue whole: beats, promoter, reaper, auditor. All of it may run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .. import keys, settings
from ..errors import FairlaneError, InvalidArgument, RedisUnreachable
from ..scripts import library
from ..steps import Batch, Call, Command, Operation
from . import permits
from .control import as_text
from .intents import seen_to_exist
from .shards import move_one, read_shards
from .tokens import drop, insert, retire
from .work import reap

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROMOTED = 1000  # tokens a call
_FEW = 20  # tokens looked up one by one
_PAGE = 1000  # tokens of a lane read at once
_BITES = 20  # reaps of one request at one look; a bite is about 1,000 entries
_SILENT = 3  # requests in a row that do not answer, until a pass gives up


def register(queue: str, worker: str, host: str, pid: int, started: str) -> Operation[list[bytes]]:
    """Enters a worker: [ok, former], or [taken, host, pid] when the name beats elsewhere.

    `former` is the start of the life that had the name before on this host; empty when there was
    none. On another host it may well be alive and only silent: its leases are left to their time.
    """
    former, home = yield Command(b"HMGET", keys.worker(queue, worker), b"started", b"host")
    if home != host.encode():
        former = None
    reply: list[bytes] = yield library().register(
        (keys.workers(queue), keys.worker(queue, worker), keys.conf(queue)),
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


def wake(queue: str, worker: str, units: int, shards: Sequence[int] = (0,)) -> Operation[None]:
    """Wakes a draining worker's units from their blocking pops; what is left over expires."""
    steps = []
    for shard in shards:
        key = keys.wake(queue, worker, shard)
        steps.append(Command(b"LPUSH", key, *([b"wake"] * units)))
        steps.append(Command(b"PEXPIRE", key, 2 * settings.BLOCK_MS))
    yield Batch(steps)


def beat(queue: str, worker: str, started: str, holds: str) -> Operation[list[Any]]:
    """Renews a worker: [ok, leads, now, active_due, delayed_due, oldest_beat, shards, left].

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


def promote(queue: str, shards: Sequence[int] = (0,)) -> Operation[int]:
    """Moves every due token to its lane; returns how many.

    Raises what one of the shards says, after the others.
    """
    moved, todo, failure = 0, list(shards), None
    while todo:
        calls = []
        for shard in todo:
            names = (keys.delayed(queue, shard), *keys.lanes(queue, shard))
            calls.append(library().promote(names, most=_PROMOTED))
        replies = yield Batch(calls, lenient=True)
        again = []
        for shard, reply in zip(todo, replies, strict=True):
            if isinstance(reply, FairlaneError):
                failure = reply
                continue
            moved += reply[0]
            if reply[0] == _PROMOTED:
                again.append(shard)
        todo = again
    if failure is not None:
        raise failure
    return moved


def look_after(
    queue: str, *, audit: bool = True, failed: dict[str, FairlaneError] | None = None
) -> Operation[int]:
    """Looks at the requests that are due to be looked at, a bounded number; returns how many.

    With `audit` it also looks for their tokens, which costs more. A request that can't be read is
    put off like the others and its error put into `failed`. Raises RedisUnreachable when one
    after the other does not answer: they have been put off, so the next pass is about others.
    """
    (seconds, _), due = yield Batch(
        [
            Command(b"TIME"),
            Command(b"ZRANGE", keys.active(queue), 0, settings.MAINTAIN_MOST - 1, b"WITHSCORES"),
        ]
    )
    now = int(seconds) * 1000
    failed = {} if failed is None else failed
    count = silent = 0
    suspects: list[Suspect] = []
    for name, score in zip(due[::2], due[1::2], strict=True):
        if float(score) > now + 1000:
            break
        count += 1
        try:
            search = audit and len(suspects) < settings.AUDIT_MOST
            suspects += yield from _look(queue, name, score.decode(), now, search=search)
            silent = 0
        except FairlaneError as error:
            failed[name.decode()] = error
            silent = silent + 1 if isinstance(error, RedisUnreachable) else 0
            if silent == _SILENT:
                raise
    yield from mint_again(queue, suspects, failed)
    return count


def _look(
    queue: str, name: bytes, score: str, now: int, *, search: bool
) -> Operation[list[Suspect]]:
    """One look, and with `search` which of its tokens may be lost; after an error it is put off."""
    try:
        request_id = keys.check_name("request id", name.decode("utf-8", "replace"))
    except InvalidArgument:  # nothing of ours wrote that
        yield drop(queue, name, score)
        return []
    try:
        goes_on = yield from look_at(queue, request_id, score, now)
        return (yield from queued_long(request_id)) if goes_on and search else []
    except FairlaneError:
        is_seen = float(score) % 1 != 0
        yield _postpone(queue, request_id, score, now + settings.AUDIT_MS, is_seen=is_seen)
        raise


def look_at(queue: str, request_id: str, score: str, now: int) -> Operation[bool]:
    """One unfinished request: expired leases, an unlogged end, a lost producer.

    `score` is what stands in `active`, `now` the dispatch slot's time in ms. True if it goes on.
    """
    reply = yield from reap_all(queue, request_id)
    if reply[0] == b"gone":
        marked = yield library().abandon(
            keys.request_keys(request_id), seen=score, ttl=settings.MARKER_MS
        )
        if marked[0] == b"ok":
            yield drop(queue, request_id, score, gone=True)
        return False
    if reply[0] != b"ok":  # ended, or the request of another queue
        yield drop(queue, request_id, score)
        return False
    look = min(reply[1] or settings.AUDIT_MS, settings.AUDIT_MS)
    yield _postpone(queue, request_id, score, now + look, is_seen=True)
    return True


def reap_all(queue: str, request_id: str) -> Operation[list[Any]]:
    """Takes back every lease that has expired, bite by bite: the last reply, which is settled.

    What is left after twenty bites, about half a second, waits for the next look, which is due at
    once: the others have their turn before.
    """
    for _ in range(_BITES):
        reply: list[Any] = yield reap(queue, request_id)
        yield from settle_reap(queue, request_id, reply)
        if reply[0] != b"ok" or reply[1] != 1:
            break
    return reply


def _postpone(queue: str, request_id: str, seen: str, due: int, *, is_seen: bool) -> Call:
    """The call that says when to look at a request next; one that exists is marked so.

    The mark is a fraction in the score: an intent is always a whole number.
    """
    return library().postpone(
        (keys.active(queue),), id=request_id, seen=seen, due=seen_to_exist(due) if is_seen else due
    )


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

    @property
    def shard(self) -> int:
        """Where its lane is; 0 = among the queue's own."""
        return self.lane // keys.LANES

    def place_in_delayed(self, queue: str) -> tuple[bytes, str]:
        """The key and the member it is under if it is due later."""
        shard, priority = divmod(self.lane, keys.LANES)
        return keys.delayed(queue, shard), f"{priority}|{self.token}"


def queued_long(
    request_id: str, grace_ms: int = settings.TOKEN_GRACE_MS
) -> Operation[list[Suspect]]:
    """The permits that were queued a grace ago and still are."""
    fields, (seconds, micros) = yield Batch(
        [Command(b"HGETALL", keys.permits(request_id)), Command(b"TIME")]
    )
    now = int(seconds) * 1000 + int(micros) // 1000
    return [
        Suspect(request_id, one.k, one.g, one.lane)
        for one in permits.queued(as_text(fields))
        if now - max(one.since_ms, one.due_ms) > grace_ms
    ]


def mint_again(
    queue: str, suspects: list[Suspect], failed: dict[str, FairlaneError] | None = None
) -> Operation[int]:
    """Mints those tokens again that are nowhere; returns how many.

    A wrong guess (it is in a worker's hands) costs one stale token. With `failed`, a request that
    can't be read is put there with its error and does not keep the others from theirs.
    """
    if not suspects:
        return 0
    spread = yield from read_shards(queue)
    astray = dict.fromkeys(one.request_id for one in suspects if one.shard not in spread.served)
    found = [one for one in suspects if one.request_id not in astray]
    lost = yield from find_lost(queue, found)
    todo: dict[str, tuple[int, Operation[None]]] = {
        name: (len(missing), remint(queue, name, missing)) for name, missing in lost.items()
    }
    for name in astray:  # where nobody looks; a failover may have taken what `conf` said
        todo[name] = (1, move_one(queue, name, spread.present))
    count = 0
    for name, (missing, mend) in todo.items():
        try:
            yield from mend
            count += missing
        except FairlaneError as error:
            if failed is None or isinstance(error, RedisUnreachable):
                raise
            failed[name] = error
    return count


def audit(queue: str) -> Operation[int]:
    """Looks for the tokens of all unfinished requests now: a process that died may have had some.

    Returns how many were nowhere and are minted again. It is for a short grace after the death:
    whatever was lost with it was minted before.
    """
    ids = yield Command(b"ZRANGE", keys.active(queue), 0, -1)
    suspects: list[Suspect] = []
    failed: dict[str, FairlaneError] = {}
    for name in ids:
        try:
            request_id = keys.check_name("request id", name.decode("utf-8", "replace"))
            suspects += yield from queued_long(request_id, settings.DEATH_GRACE_MS)
        except FairlaneError as error:  # the look after requests says what is wrong with it
            if isinstance(error, RedisUnreachable):
                raise
        if len(suspects) >= settings.AUDIT_MOST:
            break
    return (yield from mint_again(queue, suspects, failed))


def remint(queue: str, request_id: str, missing: list[tuple[str, str]]) -> Operation[None]:
    """Mints the tokens of these permits again: (permit, generation) of each."""
    reply = yield reap(queue, request_id, missing=[text for one in missing for text in one])
    yield from settle_reap(queue, request_id, reply)


def find_lost(queue: str, suspects: list[Suspect]) -> Operation[dict[str, list[tuple[str, str]]]]:
    """Those of the suspects whose tokens are nowhere: request -> (permit, generation) of each.

    `delayed` is asked before the lane: a token moves only in that direction, so one that is
    missing in both was in neither.
    """
    if not suspects:
        return {}
    due = yield Batch(
        [Command(b"ZSCORE", *suspect.place_in_delayed(queue)) for suspect in suspects]
    )
    waiting = [suspect for suspect, score in zip(suspects, due, strict=True) if score is None]
    lost: dict[str, list[tuple[str, str]]] = {}
    for lane in sorted({suspect.lane for suspect in waiting}):
        here = [suspect for suspect in waiting if suspect.lane == lane]
        present = yield from _present(keys.lane(queue, lane), {one.token.encode() for one in here})
        for suspect in here:
            if suspect.token.encode() not in present:
                lost.setdefault(suspect.request_id, []).append((suspect.k, suspect.g))
    return lost


def _present(lane: bytes, tokens: set[bytes]) -> Operation[set[bytes]]:
    """Which of the tokens stand in the lane: by LPOS for a few, by reading all of it for many.

    Reading goes from the end where tokens come in, so that none can slip past the reader; but a
    lease that goes on may put the next token at that end. So what was not seen is looked for twice.
    """
    if len(tokens) <= _FEW:
        asked = sorted(tokens)
        places = yield Batch([Command(b"LPOS", lane, token, b"RANK", -1) for token in asked])
        return {token for token, place in zip(asked, places, strict=True) if place is not None}
    present: set[bytes] = set()
    for _ in range(2):
        first, is_last = 0, False
        while not is_last and len(present) < len(tokens):
            page = yield Command(b"LRANGE", lane, first, first + _PAGE - 1)
            present |= tokens.intersection(page)
            first += _PAGE
            is_last = len(page) < _PAGE
    return present
