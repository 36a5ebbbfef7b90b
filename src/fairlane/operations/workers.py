"""The workers of a queue: their registry, which of them live, and the end of dead ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from fairlane import settings
from fairlane.common.text import of_queue
from fairlane.errors import FairlaneError, InvalidArgument, RedisUnreachable
from fairlane.operations import apart_keys
from fairlane.operations.after import DONE, endings_of, lives_text, read_lives
from fairlane.operations.lease import reap
from fairlane.operations.pause import QueuePause, read_until, remedy
from fairlane.operations.rates import opens, parse_queue_rate, until_more
from fairlane.operations.tokens import (
    count_stop,
    drop_active,
    follow_up,
    parse,
    push,
    reschedule_active,
    seen_to_exist,
    was_seen,
)
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import as_text
from fairlane.protocol.server_info import time_at, time_ms
from fairlane.protocol.steps import (
    TOGETHER,
    Batch,
    Call,
    Command,
    call_each,
    run_each,
    run_each_or_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.model import Token
    from fairlane.protocol.lua import Reply
    from fairlane.protocol.scripts import (
        GlanceReply,
        HeartbeatReply,
        ReapReply,
        RegisterWorkerReply,
    )
    from fairlane.protocol.steps import Arg


# ------------------------------------------------------------------ registry
# Keeps a queue whole: heartbeats, promoter, reaper. All of it may run twice.


_PROMOTED = 1000  # tokens a call
_GLANCES = 250  # requests of one batch
_ROWS = 300  # rows of one call
_CALLS = 20  # of one batch; each has hundreds of tokens
NOW = 1  # `look_ms` of a reply: there is something to do now
_AHEAD = 100  # checks too far ahead that one pass corrects
_AHEAD_MS = 120_000  # no check lies farther ahead, unless there are very many requests
_BITES = 20  # reaps of one request in one check; each takes back about 1,000 entries


async def register_worker(
    queue: str, worker: str, host: str, pid: int, started: str, release: str = ""
) -> tuple[RegisterWorkerReply, str]:
    """Registers a worker; returns the reply, and the start of an earlier process with its name.

    The reply is `taken` if another process beats under the name. `host` is where the worker runs,
    see worker/health_port.py. The start is "" if no earlier process had the name in the same
    place. A process elsewhere, even on a host with the same name, may be alive and only late, so
    its leases are left to expire. `release` is that of the users' code, which the queue notes.
    """
    former, home = await Command(b"HMGET", keys.worker(queue, worker), b"started", b"host")
    if home != host.encode():
        former = None
    call = scripts.register_worker(
        (
            *(keys.workers(queue), keys.worker(queue, worker)),
            *(keys.conf(queue), keys.task_stats(queue)),
        ),
        id=worker,
        host=host,
        pid=pid,
        started=started,
        ttl=settings.WORKER_TTL_MS,
        late=settings.LATE_MS,
        release=release,
    )
    reply = await call
    return reply, (former or b"").decode()


async def unregister_worker(queue: str, worker: str, started: str) -> int:
    """Removes a worker; returns 1 if it was there."""
    names = (keys.workers(queue), keys.worker(queue, worker), keys.conf(queue))
    taken = keys.taken(queue, worker)
    left: int = await scripts.unregister_worker((*names, taken), id=worker, started=started)
    return left


async def wake(queue: str, worker: str, units: int, shards: Sequence[int] = (0,)) -> None:
    """Ends the blocking pops of a draining worker's units; words that are not popped expire."""
    calls: list[Call[Any]] = []
    for shard in shards:
        key = keys.wake(queue, worker, shard)
        calls += push(key, [b"wake"] * units, 2 * settings.BLOCK_MS)
    await Batch(calls)


async def heartbeat(
    queue: str, worker: str, started: str, holds: str, *, died: bool = False
) -> HeartbeatReply:
    """Renews a worker's record; returns the reply of heartbeat.lua.

    `died`: a process died or a connection broke, and tokens may be lost with it, so the leader
    looks for them.
    """
    names = (
        *(keys.workers(queue), keys.worker(queue, worker)),
        *(keys.active(queue), keys.delayed(queue), keys.conf(queue)),
        *(keys.taken(queue, worker), keys.schedules(queue)[1], keys.firing(queue)),
    )
    call = scripts.heartbeat(
        names,
        id=worker,
        started=started,
        ttl=settings.WORKER_TTL_MS,
        lock_ms=settings.LOCK_MS,
        holds=holds,
        taken_ttl=settings.TAKEN_TTL_MS,
        died="1" if died else "",
    )
    return await call


async def promote(queue: str, shards: Sequence[int] = (0,)) -> int:
    """Moves every due token to its lane; returns how many.

    The error of a shard is raised after the other shards were served.
    """
    moved, todo, failure = 0, list(shards), None
    while todo:
        calls = []
        for shard in todo:
            names = (
                *(keys.delayed(queue, shard), *keys.turns(queue, shard)),
                *keys.lanes(queue, shard),
            )
            calls.append(scripts.promote(names, most=_PROMOTED))
        replies = await Batch(calls, lenient=True)
        again = []
        for shard, reply in zip(todo, replies, strict=True):
            if isinstance(reply, FairlaneError):
                failure = reply
                continue
            moved += reply.moved
            if reply.moved == _PROMOTED:
                again.append(shard)
        todo = again
    if failure is not None:
        raise failure
    return moved


async def look_after(
    queue: str, *, failed: dict[str, FairlaneError] | None = None, fed: list[str] | None = None
) -> int:
    """Checks the requests whose check is due, a bounded number; returns how many.

    A glance is enough for most requests; only a request that needs more is looked at closely. If
    many are unfinished, a request that needs nothing is checked again later, because workers' notes
    and the audit find damage sooner. If a request can't be read, it is postponed like the others,
    and its error is put into `failed`. If a flow's step gets its sub-requests from other steps, it
    is put into `fed`: see operations/flow_hand_over.py.
    """
    now, names, scores, unfinished = await _due(queue)
    failed = {} if failed is None else failed
    calm_ms = max(settings.AUDIT_MS, 1000 * unfinished // settings.LOOKS_PER_S)
    rows: list[Arg] = []
    for name, reply in (await glances(queue, names)).items():
        score = scores[name]
        try:
            if isinstance(reply, FairlaneError):
                raise reply
            if reply.is_ok and reply.chore == b"feed":
                (fed if fed is not None else []).append(name)
            elif reply.is_ok and reply.chore:
                await do_chore(queue, name, reply.chore.decode())
            if reply.is_ok and reply.look_ms != NOW:
                due = _not_before(score, now, now + _until_next(name, reply.look_ms, calm_ms))
                rows += [name, score, seen_to_exist(due)]
                continue
            await look_at(queue, name, score, now)
        except FairlaneError as error:
            failed[name] = error
            due = _not_before(score, now, now + _until_next(name, 0, calm_ms))
            rows += [name, score, seen_to_exist(due) if was_seen(score) else due]
    await _postpone_all(queue, rows)
    return len(scores)


def _until_next(name: str, look_ms: int, calm_ms: int) -> int:
    """Returns the ms until the next check, from the `look_ms` of a glance.

    If there are many requests, the time varies, so that not all are due together.
    """
    if calm_ms > settings.AUDIT_MS:
        calm_ms = calm_ms * (256 + crc32(name.encode()) % 256) // 512
    return min(look_ms or calm_ms, calm_ms)


def _not_before(score: str, now: int, due_ms: int) -> int:
    """Returns when to check next, which must not be before an intent in the same entry.

    The intent may be of a later request with this id, written only after the present one ended. If
    a check then gives up the entry, it must give up the intent, too. No intent lies farther ahead
    of `now` than a grace, and `now` is cut to seconds.
    """
    return max(due_ms, min(int(float(score)), now + settings.INTENT_GRACE_MS + 1000))


async def _due(queue: str) -> tuple[int, list[str], dict[str, str], int]:
    """Returns the dispatch slot's time in ms, the due names, all scores, and the size of `active`.

    An entry that no release of ours wrote is removed. A check that lies too far ahead is due, too,
    because it was set before the clock went back.
    """
    most = settings.MAINTAIN_MOST
    active = keys.active(queue)
    (seconds, _), due, unfinished = await Batch(
        [
            Command(b"TIME"),
            Command(b"ZRANGE", active, 0, most - 1, b"WITHSCORES"),
            Command(b"ZCARD", active),
        ]
    )
    now = int(seconds) * 1000
    names, scores = list[str](), dict[str, str]()
    # lua/v1/lib/queue.lua has the same bound.
    latest = now + max(_AHEAD_MS, 10 * unfinished)
    entries = dict(zip(due[::2], due[1::2], strict=True))
    if unfinished > most:
        ahead = await Command(b"ZRANGE", active, -_AHEAD, -1, b"WITHSCORES")
        pairs = zip(ahead[::2], ahead[1::2], strict=True)
        entries |= {name: score for name, score in pairs if float(score) > latest}
    for name, score in entries.items():
        if now + 1000 < float(score) <= latest:
            continue
        shown = name.decode("utf-8", "replace")
        scores[shown] = score.decode()
        try:
            names.append(keys.check_name("request id", shown))
        except InvalidArgument:
            await drop_active(queue, name, score.decode())
    return now, names, scores, unfinished


async def glances(
    queue: str, names: Iterable[str], grace_ms: int | None = None
) -> dict[str, GlanceReply | FairlaneError]:
    """Returns what the script glance reports of each request, or its error.

    If `grace_ms` is given, each reply names the permits whose tokens are on their way for longer.
    """
    ids = list(names)
    replies = await call_each([glance(queue, name, grace_ms) for name in ids], _GLANCES)
    return dict(zip(ids, replies, strict=True))


def glance(queue: str, request_id: str, grace_ms: int | None = None) -> Call[GlanceReply]:
    """Returns the call that reports what maintenance a request needs, and changes nothing."""
    grace = "" if grace_ms is None else grace_ms
    return scripts.glance(keys.request_keys(request_id), queue=queue, grace=grace)


async def look_at(queue: str, request_id: str, score: str, now: int) -> bool:
    """Checks an unfinished request: expired leases, an unlogged end, a lost producer.

    `score` is the request's score in `active`, `now` the dispatch slot's time in ms. Returns True
    if the request goes on.
    """
    reply = await reap_all(queue, request_id)
    is_lost = False
    if reply.is_gone or reply.is_ended:  # a later request may follow, also after a deletion
        names = keys.request_keys(request_id)
        marked = await scripts.abandon(names, seen=score, ttl=settings.MARKER_MS)
        # A request came and has ended since, or this one was reopened and has ended again.
        has_come = marked.is_over and (
            reply.is_gone or marked.ending.decode() != reply.summary.ending
        )
        if has_come or marked.is_exists:  # a producer was quicker: the next check is about it
            return False
        is_lost = reply.is_gone and marked.is_ok
    if not goes_on(reply):  # gone, ended, or a request of another queue
        await drop_active(queue, request_id, score, gone=is_lost)
        return False
    look = min(reply.look_ms or settings.AUDIT_MS, settings.AUDIT_MS)
    due = _not_before(score, now, now + look)
    await _postpone_all(queue, [request_id, score, seen_to_exist(due)])
    return True


def goes_on(reply: ReapReply) -> bool:
    """Returns True if a reply of reap shows that the request goes on; then it has `look_ms`."""
    return bool(reply.is_ok or reply.is_stopped)


async def reap_all(queue: str, request_id: str) -> ReapReply:
    """Takes back every expired lease, in bounded calls; returns the last reply, followed up.

    After twenty calls, about half a second, the rest waits for the next check. That is due
    immediately, but other requests come first.
    """
    for _ in range(_BITES):
        reply = await reap(queue, request_id)
        await settle_reap(queue, request_id, reply)
        if not goes_on(reply) or reply.look_ms != NOW:
            break
    return reply


async def _postpone_all(queue: str, rows: list[Arg]) -> None:
    """Sets when to check requests next; a row is a request, the score read, and the new score.

    The score of a request that exists has a fraction; the score of an intent is a whole number.
    """
    for start in range(0, len(rows), 3 * _ROWS):
        await reschedule_active(queue, rows[start : start + 3 * _ROWS])


async def settle_reap(queue: str, request_id: str, reply: Reply) -> None:
    """Dispatches the tokens that a reap minted, or logs the end that it found."""
    await settle_reaps(queue, {request_id: reply})


async def settle_reaps(queue: str, replies: Mapping[str, Reply | FairlaneError]) -> None:
    """Dispatches the tokens that the reaps of many requests minted, and logs the ends they found.

    `replies` is by request; errors among them are skipped. The error of a shard that takes no
    tokens is raised after the other shards have theirs.
    """
    settled = [
        (request_id, reply)
        for request_id, reply in replies.items()
        if not isinstance(reply, FairlaneError)
    ]
    calls = follow_up(queue, *settled)
    errors: list[FairlaneError] = []
    for start in range(0, len(calls), _CALLS):
        answers = await run_each_or_error(calls[start : start + _CALLS])
        errors += (answer for answer in answers if isinstance(answer, FairlaneError))
    if any(reply.is_stopped for _, reply in settled):
        await count_stop(queue)
    if errors:
        raise errors[0]


# ------------------------------------------------------------------ live workers
# Finds which workers of a queue beat, and the remedy if none does or the queue is paused.


async def unserved(queue: str) -> str:
    """Returns the remedy for a queue that is paused, has no worker or has used up its rate.

    Returns "" for any other queue, and if the workers cannot be read, because the caller reports
    something more important.
    """
    key = keys.workers(queue)
    asked = [
        Command(b"ZRANGE", key, 0, -1, b"WITHSCORES"),
        Command(b"HMGET", keys.conf(queue), b"paused_until", b"rate"),
        Command(b"TIME"),
    ]
    try:
        workers, (until, text), time = await Batch(asked, patience_s=0.0, away_s=settings.AWAY_S)
        rate, now_ms = parse_queue_rate(queue, text), time_ms(time)
        opens_ms = 0 if rate is None else await opens(rate, now_ms)
    except FairlaneError:
        return ""
    pause = QueuePause(read_until(until), now_ms)
    if pause.is_paused:
        return remedy(queue, pause)
    ages = beat_ages(workers, now_ms)
    if all(is_late(age_ms) for age_ms in ages.values()):
        return no_worker(queue)
    return until_more(queue, rate, opens_ms, now_ms) if rate is not None and opens_ms else ""


def no_worker(queue: str) -> str:
    """Returns the sentence about a queue without a live worker."""
    return (
        f"no worker takes from queue {queue}: "
        f"start one with rq-worker --app module:app, or --handler module:function{of_queue(queue)}"
    )


def beat_ages(workers: Sequence[bytes], now_ms: int) -> dict[str, int]:
    """Returns the age of each worker's last beat, unless its record has expired since."""
    pairs = zip(workers[::2], workers[1::2], strict=True)
    ages = {
        name.decode("utf-8", "replace"): max(0, now_ms - int(float(beat))) for name, beat in pairs
    }
    return {name: ages[name] for name in sorted(ages) if ages[name] <= settings.WORKER_TTL_MS}


# ------------------------------------------------------------------ dead workers
# Finds workers that may be dead, and takes back the leases of a dead worker.


DEATHS_MS = 3_600_000  # how long a death is noted after the last one
_MOST_DEATHS = 1_000
LATEST_MS = 2 * settings.LATE_MS  # a worker with an older beat is stopped, cut off or dead


class Late(NamedTuple):
    """A worker whose beat is late."""

    worker: str
    started: str
    host: str


def is_late(age_ms: float) -> bool:
    """Returns True if the last heartbeat is so old that the worker is stopped, cut off or dead."""
    return age_ms > LATEST_MS


async def late_workers(queue: str) -> list[Late]:
    """Returns at most 100 workers whose beat is old; forgets workers without a beat for a TTL."""
    time, beats = await Batch(
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
    lives = await Batch(
        [Command(b"HMGET", keys.worker(queue, name), b"started", b"host") for name in names]
    )
    await scripts.expire_workers((keys.workers(queue),), ttl=settings.WORKER_TTL_MS)
    return [
        Late(name, started.decode(), (host or b"").decode())
        for name, (started, host) in zip(names, lives, strict=True)
        if started
    ]


async def take_over(queue: str, worker: str, started: str) -> int:
    """Takes back what a dead worker held, then forgets the worker; returns how many requests.

    Takes back the worker's leases, and mints again the tokens that it popped and did not use. That
    costs a call for each request, because a worker notes its tokens in Redis before it uses them. A
    request that can't be read is skipped: the audit finds its expired lease. The error of a shard
    that takes no tokens is raised after the worker is forgotten.
    """
    fields = await Command(b"HGETALL", keys.taken(queue, worker))
    wanted: dict[str, list[str]] = {}
    apart: list[Token] = []
    for raw in (token for tokens in fields[1::2] for token in tokens.split()):
        if (token := parse(raw)) is not None:
            wanted.setdefault(token.request_id, []).extend((token.k, token.g))
            apart += [token] if token.is_apart else []
    todo = list(wanted)
    error: FairlaneError | None = None
    while todo:
        part, todo = todo[:TOGETHER], todo[TOGETHER:]
        calls = [
            reap(queue, name, worker=worker, started=started, missing=wanted[name]) for name in part
        ]
        answers = await call_each(calls)
        replies = dict(zip(part, answers, strict=True))
        try:
            await settle_reaps(queue, replies)
        except FairlaneError as failure:  # of a shard that takes no tokens: the audit mints again
            error = error or failure
        for name, reply in replies.items():
            if isinstance(reply, FairlaneError):
                continue
            if goes_on(reply) and reply.look_ms == NOW:
                todo.append(name)  # the worker held more than one call takes back
    try:
        await apart_keys.look_at_tokens(queue, apart)
    except FairlaneError as failure:  # the audit looks later
        error = error or failure
    await unregister_worker(queue, worker, started)
    if error is not None:
        raise error
    return len(wanted)


class Death(NamedTuple):
    """A worker that died, from when it started, and when another worker noticed that; in ms."""

    worker: str
    host: str
    started_ms: int
    at_ms: int


async def note_death(queue: str, worker: str, started: str, host: str) -> None:
    """Notes for an hour that a worker died, so that `doctor` finds one that dies again and again.

    The record of the worker itself is gone by then. A full Redis may refuse the note, because
    nothing depends on it.
    """
    key = keys.deaths(queue)
    life, text = f"{started}|{worker}", f"{await time_at(key)} {host.partition(' ')[0]}"
    noted = Command(b"HSET", key, life, text), Command(b"PEXPIRE", key, DEATHS_MS)
    for reply in await run_each(noted):
        if isinstance(reply, RedisUnreachable):
            raise reply


async def recent_deaths(queue: str) -> list[Death]:
    """Returns the workers that died within the last hour, the latest first; at most 1,000."""
    flat, time = await Batch(
        [Command(b"HSCAN", keys.deaths(queue), 0, b"COUNT", _MOST_DEATHS), Command(b"TIME")]
    )
    now_ms, pairs = time_ms(time), as_text(flat[1]).items()
    found = list[Death]()
    for life, text in pairs:
        started, _, worker = life.partition("|")
        at, _, host = text.partition(" ")
        if at.isdecimal() and started.isdecimal() and now_ms - int(at) < DEATHS_MS:
            found.append(Death(worker, host, int(started), int(at)))
    return sorted(found, key=lambda one: -one.at_ms)


# ------------------------------------------------------------------ chores
# What the leading worker does for requests that age, or wait for others.
#
# Both chores depend on the time or on other slots, so no script of the request alone can do them. A
# chore may be done twice.


async def do_chore(queue: str, request_id: str, chore: str) -> None:
    """Does the chore that a glance reported: hastens a request, or starts it after others."""
    if chore == "aged":
        await _run(queue, request_id, scripts.hasten(keys.request_keys(request_id)))
        return
    mode, lives = read_lives(chore)
    endings = await endings_of(lives)
    failures = [
        f"after: request {life.id} {ending}"
        for life, ending in zip(lives, endings, strict=True)
        if ending and mode == DONE
    ]
    # An ended request is not read again, because its hash may expire before the others end.
    later = [
        life if ending is None else life._replace(is_over=True)
        for life, ending in zip(lives, endings, strict=True)
    ]
    if later == lives and not failures and None in endings:
        return
    call = scripts.open_gate(
        keys.request_keys(request_id),
        found=chore,
        left=f"{mode}:{lives_text(later)}" if None in endings else "",
        reason=failures[0] if failures else "",
    )
    await _run(queue, request_id, call)


async def _run(queue: str, request_id: str, call: Call[Any]) -> None:
    reply = await call
    if calls := follow_up(queue, (request_id, reply)):
        await Batch(calls)
