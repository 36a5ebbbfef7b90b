"""How a queue is: its workers, its tokens, its requests. Only read, and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.text import format_duration, join_names, plural
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.operations.diagnosis.fsck import still_lost
from fairlane.operations.diagnosis.server_checks import BAD, OK, WARN, Check
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.operations.maintenance.lost_tokens import Suspect, queued_long
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

_MOST = 500  # requests looked at, the most overdue first
_ENDINGS = 100
_SUSPECTS = 20_000  # permits whose tokens are looked for
_LONG_MS = 600_000  # without anything done
_OVERDUE_MS = 30_000  # what is due is looked after within seconds
_REPAIR = "fairlane fsck --repair"
_FIELDS = (
    *("state", "queue", "queued", "fresh", "sleeper", "open", "last_ms", "born"),
    *("seq", "deadline"),
)


class Seen(NamedTuple):
    """One unfinished request at one moment; ages in ms."""

    id: str
    state: str
    held: int
    expired: int  # leases that should have been taken back
    ready: int
    queued: int
    is_open: bool
    chunk_age: int
    age: int
    seq: str  # grows whenever a permit is queued or taken
    is_late: bool  # past its deadline: nothing of it starts any more


def judge_queue(queue: str) -> Operation[list[Check]]:
    """Every check of one queue. Raises FairlaneError when its keys can't be read."""
    spread = yield from read_shards(queue)
    beats, active, count, (seconds, _), *delayed = yield Batch(
        [
            Command(b"ZRANGE", keys.workers(queue), 0, -1, b"WITHSCORES"),
            Command(b"ZRANGE", keys.active(queue), 0, _MOST - 1, b"WITHSCORES"),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"TIME"),
            *(
                Command(b"ZRANGE", keys.delayed(queue, shard), 0, 0, b"WITHSCORES")
                for shard in spread.served
            ),
        ]
    )
    now = int(seconds) * 1000
    seen, unreadable = yield from _look(queue, active[::2])
    checks = [_workers(queue, beats, now, count), _upkeep([active, *delayed], now)]
    checks.append((yield from _tokens(queue, seen)))
    checks.append((yield from _stuck(queue, seen)))
    checks += _behind(seen)
    checks += yield from _idle(seen, has_workers=bool(beats))
    if unreadable:
        what = f"can't be read: {join_names(unreadable)}"
        checks.append(Check("unreadable", BAD, what, "fairlane fsck says why"))
    checks.append((yield from _endings(queue)))
    if count > _MOST:
        checks.append(Check("requests", OK, f"{_MOST} of {count:,} unfinished ones looked at"))
    return checks


def _workers(queue: str, beats: list[bytes], now: int, waiting: int) -> Check:
    late = [
        name.decode("utf-8", "replace")
        for name, beaten in zip(beats[::2], beats[1::2], strict=True)
        if is_late(now - float(beaten))
    ]
    count = len(beats) // 2 - len(late)
    if not count and waiting:
        what = f"no worker beats, and {plural(waiting, 'unfinished request')} waiting"
        remedy = f"start one: fairlane worker --queue {queue} --handler module:function"
        return Check("workers", BAD, what, remedy)
    if late:
        what = f"{count} beat, late: {join_names(late)}"
        return Check("workers", WARN, what, "look whether they run; what they held goes to others")
    return Check("workers", OK, f"{count} beat" if count else "none, and nothing waits")


def _upkeep(dues: list[list[bytes]], now: int) -> Check:
    """Whether what is due is looked after: of `active`, and of every shard's `delayed`."""
    due = [float(some[1]) for some in dues if some]
    behind = now - min(due, default=now)
    if behind <= _OVERDUE_MS:
        return Check("upkeep", OK, "what is due is looked after")
    what = f"no leader has looked after what was due {format_duration(int(behind))} ago"
    remedy = f"any worker of the queue does; {_REPAIR} does most of it once"
    return Check("upkeep", WARN, what, remedy)


def _look(queue: str, names: list[bytes]) -> Operation[tuple[list[Seen], list[str]]]:
    """The unfinished requests of these names, and those that can't be read."""
    seen: list[Seen] = []
    unreadable: list[str] = []
    for name in names:
        request_id = name.decode("utf-8", "replace")
        try:
            found = yield from _one(queue, request_id)
        except RedisUnreachable:
            raise
        except FairlaneError:
            unreadable.append(request_id)
            continue
        if found is not None:
            seen.append(found)
    return seen, unreadable


def _one(queue: str, request_id: str) -> Operation[Seen | None]:
    leases, retries = keys.leases(request_id), keys.retries(request_id)
    row, time = yield Batch([hmget(request_id, *_FIELDS), Command(b"TIME")])
    value = dict(zip(_FIELDS, parse_fields(_FIELDS, row), strict=True))
    if value["queue"] != queue or value["state"] in ENDED_STATES:
        return None
    now = time_ms(time)
    held, expired, due = yield Batch(
        [
            Command(b"ZCARD", leases),
            Command(b"ZCOUNT", leases, b"-inf", now - _OVERDUE_MS),
            Command(b"ZCOUNT", retries, b"-inf", now),
        ]
    )
    born = int(value["born"] or now)
    return Seen(
        request_id,
        value["state"],
        held,
        expired,
        int(value["fresh"] or 0) + due,
        int(value["queued"] or 0) + bool(value["sleeper"]),
        value["open"] == "1",
        now - max(int(value["last_ms"] or 0), born),
        now - born,
        value["seq"],
        0 < int(value["deadline"] or 0) <= now,
    )


def _tokens(queue: str, seen: list[Seen]) -> Operation[Check]:
    """Leaked tokens: permits that wait for a token which is nowhere."""
    suspects: list[Suspect] = []
    for one in seen:
        if one.queued and len(suspects) < _SUSPECTS:
            suspects += yield from queued_long(one.id)
    lost = yield from still_lost(queue, suspects)
    if not lost:
        return Check("tokens", OK, "none is lost")
    what = f"{plural(sum(map(len, lost.values())), 'token')} lost, of {join_names(list(lost))}"
    remedy = f"the leading worker mints them again within 20 s; {_REPAIR} does it now"
    return Check("tokens", WARN, what, remedy)


def _is_stuck(one: Seen) -> bool:
    is_idle = not one.held and not one.queued and not one.is_late
    return one.state == "active" and one.ready > 0 and is_idle


def _stuck(queue: str, seen: list[Seen]) -> Operation[Check]:
    """Requests that nothing will move.

    What one of them has is read in two round trips, between which its slice may be settled. So they
    are looked at again: one that has not moved between is stuck.
    """
    first = {one.id: one for one in seen if _is_stuck(one)}
    again, _ = yield from _look(queue, [name.encode() for name in first])
    stuck = [one.id for one in again if _is_stuck(one) and one.seq == first[one.id].seq]
    if not stuck:
        return Check("stuck", OK, "no request is stuck")
    what = f"work waits, no lease holds it and no token is queued: {join_names(stuck)}"
    return Check("stuck", BAD, what, _REPAIR)


def _behind(seen: list[Seen]) -> list[Check]:
    """Judges leases that are not taken back, and open requests without new chunks."""
    checks = []
    expired = [one.id for one in seen if one.expired]
    if expired:
        what = f"leases have expired and no leader takes them back: {join_names(expired)}"
        checks.append(Check("leases", WARN, what, f"start a worker, or {_REPAIR}"))
    stalled = [one.id for one in seen if one.is_open and one.chunk_age > _LONG_MS]
    if stalled:
        what = f"open, and no chunk has come for {format_duration(_LONG_MS)}: {join_names(stalled)}"
        remedy = (
            "submit the same again to go on, or fairlane cancel ID; after an hour it is cancelled"
        )
        checks.append(Check("open", WARN, what, remedy))
    return checks


def _idle(seen: list[Seen], *, has_workers: bool) -> Operation[list[Check]]:
    """Requests that have work, and of which nothing has been done for long."""
    old = [one for one in seen if one.state == "active" and one.age > _LONG_MS]
    still: dict[bool, list[str]] = {True: [], False: []}
    for one in [one for one in old if one.ready or one.held][:_ENDINGS]:
        out = keys.results(one.id)
        reply, (seconds, _) = yield Batch(
            [Command(b"XREVRANGE", out, b"+", b"-", b"COUNT", 1), Command(b"TIME")]
        )
        if reply and int(seconds) * 1000 - int(reply[0][0].partition(b"-")[0]) <= _LONG_MS:
            continue
        still[one.held > 0].append(one.id)
    checks = []
    if still[True]:
        what = (
            f"held, and nothing was done for {format_duration(_LONG_MS)}: {join_names(still[True])}"
        )
        remedy = "fairlane status ID names the workers; a handler may hang"
        checks.append(Check("slow", WARN, what, remedy))
    if still[False] and has_workers:
        waiting = join_names(still[False])
        what = f"waiting, and nothing was done for {format_duration(_LONG_MS)}: {waiting}"
        remedy = "workers are busy with more urgent lanes: add workers, or lower their limits"
        checks.append(Check("waiting", WARN, what, remedy))
    return checks


def _endings(queue: str) -> Operation[Check]:
    """Whether requests vanished of late."""
    log = yield Command(b"XREVRANGE", keys.completed(queue), b"+", b"-", b"COUNT", _ENDINGS)
    lost = []
    for _, fields in log:
        text = dict(zip(fields[::2], fields[1::2], strict=True))
        if text.get(b"state") == b"lost":
            lost.append(text.get(b"id", b"?").decode("utf-8", "replace"))
    if not lost:
        return Check("endings", OK, f"none lost among the last {len(log)}")
    what = f"{len(lost)} of the last {len(log)} requests were lost: {join_names(lost)}"
    remedy = "submit them again; see persistence and replicas above for how not to lose the next"
    return Check("endings", WARN, what, remedy)
