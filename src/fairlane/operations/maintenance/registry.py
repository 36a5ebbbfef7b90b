"""Keeps a queue whole: beats, promoter, reaper. All of it may run twice."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.operations.batching import call_each, run_each_or_error
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.leases import reap
from fairlane.operations.lease.tokens import count_stop, drop_active, push, reschedule_active
from fairlane.operations.submit.intents import seen_to_exist
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Arg

_PROMOTED = 1000  # tokens a call
_GLANCES = 250  # requests of one batch
_ROWS = 300  # of one call
_CALLS = 20  # of one batch; each has hundreds of tokens
NOW = 1  # `look_ms` of a reply: there is something to do now
_BITES = 20  # reaps of one request at one look; a bite is about 1,000 entries


def register_worker(
    queue: str, worker: str, host: str, pid: int, started: str
) -> Operation[tuple[Reply, str]]:
    """Enters a worker; returns the reply, `taken` if the name beats elsewhere, and a former life.

    `host` is where it runs, see worker/host_identity.py. The former life is the start of the one
    that had the name before in the same place, empty if there was none. A life elsewhere, even on a
    host with the same name, may be alive and only late: its leases are left to expire.
    """
    former, home = yield Command(b"HMGET", keys.worker(queue, worker), b"started", b"host")
    if home != host.encode():
        former = None
    call = library().register_worker(
        (keys.workers(queue), keys.worker(queue, worker), keys.conf(queue)),
        id=worker,
        host=host,
        pid=pid,
        started=started,
        ttl=settings.WORKER_TTL_MS,
        late=settings.LATE_MS,
    )
    reply = yield from call.run()
    return reply, (former or b"").decode()


def unregister_worker(queue: str, worker: str, started: str) -> Operation[int]:
    """Removes a worker; returns 1 if it was there."""
    names = (keys.workers(queue), keys.worker(queue, worker), keys.conf(queue))
    taken = keys.taken(queue, worker)
    left: int = yield library().unregister_worker((*names, taken), id=worker, started=started)
    return left


def wake(queue: str, worker: str, units: int, shards: Sequence[int] = (0,)) -> Operation[None]:
    """Wakes a draining worker's units from their blocking pops; what is left over expires."""
    calls: list[Call] = []
    for shard in shards:
        key = keys.wake(queue, worker, shard)
        calls += push(key, [b"wake"] * units, 2 * settings.BLOCK_MS)
    yield Batch(calls)


def heartbeat(
    queue: str, worker: str, started: str, holds: str, *, died: bool = False
) -> Operation[Reply]:
    """Renews a worker; returns the reply of heartbeat.lua.

    `died`: a process or a connection was lost, and tokens may be lost with it, so the leader looks
    for them.
    """
    names = (
        *(keys.workers(queue), keys.worker(queue, worker)),
        *(keys.active(queue), keys.delayed(queue), keys.conf(queue)),
        keys.taken(queue, worker),
    )
    call = library().heartbeat(
        names,
        id=worker,
        started=started,
        ttl=settings.WORKER_TTL_MS,
        lock_ms=settings.LOCK_MS,
        holds=holds,
        taken_ttl=settings.TAKEN_TTL_MS,
        died="1" if died else "",
    )
    return (yield from call.run())


def count_cancels(queue: str) -> Operation[bytes | None]:
    """Returns how many requests of the queue were stopped while they were worked on."""
    step = Command(b"HGET", keys.conf(queue), b"cancels")
    step.away_s = settings.BEAT_MS / 1000  # leases at other nodes are not to wait for this one
    count: bytes | None = yield step
    return count


def promote(queue: str, shards: Sequence[int] = (0,)) -> Operation[int]:
    """Moves every due token to its lane; returns how many.

    Raises the error of a shard after the others.
    """
    moved, todo, failure = 0, list(shards), None
    while todo:
        calls = []
        for shard in todo:
            names = (keys.delayed(queue, shard), *keys.lanes(queue, shard))
            calls.append(library().promote(names, most=_PROMOTED))
        replies = yield Batch(calls, lenient=True)
        again = []
        for shard, call, raw in zip(todo, calls, replies, strict=True):
            if isinstance(raw, FairlaneError):
                failure = raw
                continue
            count = call.reply(raw).moved
            moved += count
            if count == _PROMOTED:
                again.append(shard)
        todo = again
    if failure is not None:
        raise failure
    return moved


def look_after(queue: str, *, failed: dict[str, FairlaneError] | None = None) -> Operation[int]:
    """Looks at the requests that are due to be looked at, a bounded number; returns how many.

    A glance is enough for most: only a request that needs more is looked at closely. The more
    requests are unfinished, the later a request of which nothing is expected is looked at again,
    because workers' notes and the audit lead to what is wrong with it. A request that can't be read
    is put off like the others, and its error is put into `failed`.
    """
    now, names, scores, unfinished = yield from _due(queue)
    failed = {} if failed is None else failed
    calm_ms = max(settings.AUDIT_MS, 1000 * unfinished // settings.LOOKS_PER_S)
    rows: list[Arg] = []
    for name, reply in (yield from glances(queue, names)).items():
        score = scores[name]
        try:
            if isinstance(reply, FairlaneError):
                raise reply
            if reply.is_ok and reply.look_ms != NOW:
                due = _not_before(score, now, now + _until_next(name, reply.look_ms, calm_ms))
                rows += [name, score, seen_to_exist(due)]
                continue
            yield from look_at(queue, name, score, now)
        except FairlaneError as error:
            failed[name] = error
            due = _not_before(score, now, now + _until_next(name, 0, calm_ms))
            rows += [name, score, seen_to_exist(due) if float(score) % 1 else due]
    yield from _postpone_all(queue, rows)
    return len(scores)


def _until_next(name: str, look_ms: int, calm_ms: int) -> int:
    """Returns the milliseconds until the next look, by what a glance reports.

    If there are many requests, it varies: those submitted together must not all come due together.
    """
    if calm_ms > settings.AUDIT_MS:
        calm_ms = calm_ms * (256 + crc32(name.encode()) % 256) // 512
    return min(look_ms or calm_ms, calm_ms)


def _not_before(score: str, now: int, due_ms: int) -> int:
    """Returns when to look next; that must not be before an intent that the entry may stand for.

    The intent may be that of a new life, whose request is written only after the present one ended.
    A look that then gives up the entry must give up the intent, too. No intent lies farther ahead
    of `now` than a grace, and `now` is cut to seconds.
    """
    return max(due_ms, min(int(float(score)), now + settings.INTENT_GRACE_MS + 1000))


def _due(queue: str) -> Operation[tuple[int, list[str], dict[str, str], int]]:
    """Returns the dispatch slot's time in ms, what is due, and how many are unfinished.

    What is due: the names of requests, and the scores of all entries.

    An entry that no release of ours wrote is taken out.
    """
    most = settings.MAINTAIN_MOST
    active = keys.active(queue)
    (seconds, _), due, unfinished = yield Batch(
        [
            Command(b"TIME"),
            Command(b"ZRANGE", active, 0, most - 1, b"WITHSCORES"),
            Command(b"ZCARD", active),
        ]
    )
    now = int(seconds) * 1000
    names, scores = list[str](), dict[str, str]()
    for name, score in zip(due[::2], due[1::2], strict=True):
        if float(score) > now + 1000:
            break
        shown = name.decode("utf-8", "replace")
        scores[shown] = score.decode()
        try:
            names.append(keys.check_name("request id", shown))
        except InvalidArgument:
            yield drop_active(queue, name, score.decode())
    return now, names, scores, unfinished


def glances(
    queue: str, names: Iterable[str], grace_ms: int | None = None
) -> Operation[dict[str, Reply | FairlaneError]]:
    """Returns what the script glance reports of each request, or its error.

    With `grace_ms` each reply names the permits whose tokens have been on their way for longer.
    """
    ids = list(names)
    replies = yield from call_each([glance(queue, name, grace_ms) for name in ids], _GLANCES)
    return dict(zip(ids, replies, strict=True))


def glance(queue: str, request_id: str, grace_ms: int | None = None) -> Call:
    """Returns the call that reports what a request needs, and changes nothing."""
    grace = "" if grace_ms is None else grace_ms
    return library().glance(keys.request_keys(request_id), queue=queue, grace=grace)


def look_at(queue: str, request_id: str, score: str, now: int) -> Operation[bool]:
    """Looks at an unfinished request: expired leases, an unlogged end, a lost producer.

    `score` is what stands in `active`, `now` the dispatch slot's time in ms. True if it goes on.
    """
    reply = yield from reap_all(queue, request_id)
    is_lost = False
    if reply.is_gone or (reply.is_ended and reply.summary.state == b"cancelled"):
        names = keys.request_keys(request_id)
        marked = yield from library().abandon(names, seen=score, ttl=settings.MARKER_MS).run()
        has_come = reply.is_gone and marked.is_over  # and it has ended since
        if has_come or marked.is_exists:  # a producer was quicker: the next look is about it
            return False
        is_lost = reply.is_gone and marked.is_ok
    if not goes_on(reply):  # gone, ended, or the request of another queue
        yield drop_active(queue, request_id, score, gone=is_lost)
        return False
    look = min(reply.look_ms or settings.AUDIT_MS, settings.AUDIT_MS)
    due = _not_before(score, now, now + look)
    yield from _postpone_all(queue, [request_id, score, seen_to_exist(due)])
    return True


def goes_on(reply: Reply) -> bool:
    """True if a reply of reap says that the request has not ended; then it has `look_ms`."""
    return bool(reply.is_ok or reply.is_stopped)


def reap_all(queue: str, request_id: str) -> Operation[Reply]:
    """Takes back every lease that has expired, bite by bite; returns the last reply, settled.

    What is left after twenty bites, about half a second, waits for the next look. That is due
    immediately, and other requests have their turn before.
    """
    for _ in range(_BITES):
        reply = yield from reap(queue, request_id).run()
        yield from settle_reap(queue, request_id, reply)
        if not goes_on(reply) or reply.look_ms != NOW:
            break
    return reply


def _postpone_all(queue: str, rows: list[Arg]) -> Operation[None]:
    """Sets when to look at requests next; each row is a request, the score seen, and the next one.

    The score of a request that exists has a fraction: an intent is always a whole number.
    """
    for start in range(0, len(rows), 3 * _ROWS):
        yield reschedule_active(queue, rows[start : start + 3 * _ROWS])


def settle_reap(queue: str, request_id: str, reply: Reply) -> Operation[None]:
    """Dispatches what a reap minted, or logs the ending it found."""
    yield from settle_reaps(queue, {request_id: reply})


def settle_reaps(queue: str, replies: Mapping[str, Reply | FairlaneError]) -> Operation[None]:
    """Dispatches what the reaps of many requests minted, and logs the endings they found.

    `replies` is by request; an error among them, a FairlaneError, is passed over. Raises the error
    of a shard that takes no tokens, after the others have theirs.
    """
    settled = [
        (request_id, reply)
        for request_id, reply in replies.items()
        if not isinstance(reply, FairlaneError)
    ]
    calls = follow_up(queue, *settled)
    errors: list[FairlaneError] = []
    for start in range(0, len(calls), _CALLS):
        answers = yield from run_each_or_error(calls[start : start + _CALLS])
        errors += (answer for answer in answers if isinstance(answer, FairlaneError))
    if any(reply.is_stopped for _, reply in settled):
        yield from count_stop(queue)
    if errors:
        raise errors[0]
