"""The queues on a Redis. Their names are in the names of keys, so SCAN finds them.

A page looks at about MOST_KEYS keys, 1,000 in a call, whatever they are. So on a Redis with
1,000,000 requests, which have at least 2,000,000 keys, a few pages list all queues. A queue
costs up to 101 short commands for each of its shards, and up to 106 more, 100 in a round trip.
"""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import Any

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.model import ENDED
from fairlane.operations import tokens as waiting_tokens
from fairlane.operations.backlog import (
    WaitingRow,
    backlog_of,
    endings_of,
    newest_ended,
    workers_of,
)
from fairlane.operations.find import (
    invalid_cursor,
    is_number,
    list_workers,
    most_urgent,
    read_counts,
    read_cursor,
    write_cursor,
)
from fairlane.operations.long_calls import long_calls_of
from fairlane.operations.pause import QueuePause, read_until
from fairlane.operations.rates import parse_queue_rate
from fairlane.operations.shards import Shards, read_shards, served
from fairlane.operations.workers import LATEST_MS, beat_ages, is_late
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Nodes, OnNode, run_each
from fairlane.records import QueueBacklog, QueuePage, QueueStatus, QueueSummary

MOST_KEYS = 1_000_000  # keys that one page looks at, in all
MOST_NAMED = 100_000  # keys that are looked at for names like a mistyped one
_COUNT = 1_000  # keys of one SCAN
_COUNTED = 100  # unfinished requests of a queue that are read
_OWNER = "the queues"
_READ = ("state", "queue", "dead", "priority", "fresh", "total", "born")


class _Scan:
    """A walk over the keys of all primaries, which a cursor can continue."""

    def __init__(self, nodes: list[Any], scan: str = "0") -> None:
        self.nodes, self.scan = nodes, scan

    async def page(self) -> list[str]:
        """Returns the queues that the next keys name. Only a queue's first existing key counts."""
        node = self.nodes[0]
        words = (b"SCAN", self.scan, b"MATCH", keys.EVERY_QUEUE_KEY, b"COUNT", _COUNT)
        cursor, found = await OnNode(node, Command(*words))
        self.scan = cursor.decode()
        if self.scan == "0":
            self.nodes = self.nodes[1:]
        named = [parsed for parsed in map(keys.queue_and_part, found) if parsed is not None]
        return await _first_keys(named)


async def _first_keys(named: list[tuple[str, str]]) -> list[str]:
    """Returns the queues for which this key is their first key that exists.

    So each queue is found once, whichever pages have its other keys.
    """
    earlier = [keys.queue_keys(name)[: keys.QUEUE_PARTS.index(part)] for name, part in named]
    asked = [Command(b"EXISTS", *before) for before in earlier if before]
    replies = iter(await run_each(asked))
    return [
        name
        for (name, _), before in zip(named, earlier, strict=True)
        if not before or not _has_any(next(replies))
    ]


def _has_any(count: Any) -> bool:
    """Returns True if one of the keys exists; False also if this user may not see that."""
    return isinstance(count, int) and count > 0


async def list_queues(after: str = "", most_keys: int = MOST_KEYS) -> QueuePage:
    """Returns the queues among the next keys, by name, each with what is in it.

    Raises InvalidArgument if the cursor is not valid.
    """
    scan = await _begin(after)
    found: list[QueueSummary] = []
    for _ in range(max(1, most_keys // _COUNT)):
        if not scan.nodes:
            break
        node = scan.nodes[0]
        names = await scan.page()
        found += await _summaries(node, names)
    found.sort(key=lambda one: one.name)
    rest = write_cursor(_OWNER, _shown(scan.nodes[0]), scan.scan) if scan.nodes else None
    return QueuePage(found, rest)


async def _begin(after: str) -> _Scan:
    """Returns the walk that a cursor continues; the nodes are in the order of their addresses."""
    nodes = sorted(await Nodes(), key=_shown)
    if not after:
        return _Scan(nodes)
    match read_cursor(after, _OWNER):
        case [str(shown), str(scan)] if is_number(scan):
            left = [node for node in nodes if _shown(node) >= shown]
            if left and _shown(left[0]) == shown:
                return _Scan(left, scan)
    raise invalid_cursor(after)


def _shown(node: Any) -> str:
    return "" if node is None else str(node)


# ------------------------------------------------------------------ one queue


async def _summaries(node: Any, names: list[str]) -> list[QueueSummary]:
    """Reads queues whose slots are on this node."""
    if not names:
        return []
    now_ms = time_ms(await OnNode(node, Command(b"TIME")))
    counts = await run_each([step for name in names for step in _counts(name, now_ms)])
    rows = [counts[at : at + 6] for at in range(0, len(counts), 6)]
    found = []
    for name, row in zip(names, rows, strict=True):
        if any(isinstance(reply, FairlaneError) for reply in row):
            found.append(QueueSummary(name))
            continue
        (present, left, until), requests, workers, ended, newest, active = row
        tokens = await _tokens(name, served(present or b"", left or b""))
        shards = Shards.of(present or b"").numbers
        pause = QueuePause(read_until(until), now_ms)
        waits, dead = await _inside(name, newest, active, requests, pause)
        found.append(
            QueueSummary(
                *(name, waits, tokens, requests, workers, ended, shards),
                *(pause.is_paused, pause.until_ms, dead),
            )
        )
    return found


async def _inside(
    name: str, newest: list[Any], active: list[bytes], unfinished: int, pause: QueuePause
) -> tuple[QueueBacklog | None, int | None]:
    """Returns what waits, and the dead of these endings and of these entries of `active`."""
    ids = [one.decode("utf-8", "replace") for one in active]
    replies = await run_each([hmget(one, *_READ) for one in ids])
    ended = endings_of(name, newest)
    having = [one.id for one in ended if one.dead]
    rows, away = list[WaitingRow](), 0
    for request_id, reply in zip(ids, replies, strict=True):
        if isinstance(reply, FairlaneError):
            return None, None
        state, home, *numbers = parse_fields(_READ, reply)
        if home != name or state in ENDED:  # an ending is in the log, or will be soon
            away += 1
            continue
        dead, *more = (int(number or 0) for number in numbers)
        having += [request_id] if dead else []
        rows.append(WaitingRow(*more))
    kept = await run_each([Command(b"XLEN", keys.dead(one)) for one in dict.fromkeys(having)])
    count = None if any(isinstance(one, FairlaneError) for one in kept) else sum(kept)
    waits = backlog_of(
        *(rows, unfinished, ended, await workers_of(name), pause.now_ms),
        is_paused=pause.is_paused,
        away=away,
    )
    return waits, count


def _counts(name: str, now_ms: int) -> list[Command]:
    return [
        Command(b"HMGET", keys.conf(name), b"shards", b"left", b"paused_until"),
        Command(b"ZCARD", keys.active(name)),
        Command(b"ZCOUNT", keys.workers(name), now_ms - LATEST_MS, b"+inf"),
        Command(b"XLEN", keys.completed(name)),
        newest_ended(name),
        Command(b"ZRANGE", keys.active(name), 0, _COUNTED - 1),
    ]


async def _tokens(name: str, shards: tuple[int, ...]) -> int | None:
    """Counts the tokens in all lanes; an empty queue costs one command a shard."""
    lanes = [keys.lanes(name, shard) for shard in shards]
    there = await run_each([Command(b"EXISTS", *one) for one in lanes])
    full = [one for one, count in zip(lanes, there, strict=True) if count]
    counts = await run_each([Command(b"LLEN", key) for one in full for key in one])
    if any(isinstance(reply, FairlaneError) for reply in (*there, *counts)):
        return None
    return sum(map(int, counts))


# ------------------------------------------------------------------ names


async def is_known(queue: str) -> bool:
    """Returns True if this queue was ever used on this Redis, by a producer or a worker.

    The call is tried once, because the caller has something more important to do.
    """
    (count,) = await Batch([Command(b"EXISTS", *keys.queue_keys(queue))], patience_s=0.0)
    return bool(count)


async def reach(queue: str) -> None:
    """Returns when the server of this queue sends any reply. Raises RedisUnreachable."""
    (reply,) = await Batch([Command(b"EXISTS", keys.workers(queue))], lenient=True)
    if isinstance(reply, RedisUnreachable):
        raise reply


async def similar_queues(queue: str) -> tuple[list[str], list[str]]:
    """Returns the names like this one, the most similar first, and all names that were found.

    About MOST_NAMED keys are scanned.
    """
    scan = await _begin("")
    share = max(1, MOST_NAMED // _COUNT // max(1, len(scan.nodes)))
    names: list[str] = []
    for node in scan.nodes:
        one = _Scan([node])
        for _ in range(share):
            if not one.nodes:
                break
            names += await one.page()
    return get_close_matches(queue, names), sorted(names)


# ------------------------------------------------------------------ overview
# A queue at a glance: its tokens by lane, its workers, its most urgent requests.
#
# Only reads. The cost is bounded, however many requests and tokens wait.


_CONF = (b"max_waiting", b"waiting", b"paused_until", b"rate")


async def queue_status(queue: str, max_requests: int = 1000) -> QueueStatus:
    """Returns the state of a queue now. Raises RedisError."""
    spread = await read_shards(queue)
    tokens = await waiting_tokens.read_waiting(queue, spread.served)
    replies = await Batch(
        [
            Command(b"ZRANGE", keys.workers(queue), 0, -1, b"WITHSCORES"),
            Command(b"TIME"),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"ZRANGE", keys.active(queue), 0, waiting_tokens.MOST_READ - 1),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"HMGET", keys.conf(queue), *_CONF),
            newest_ended(queue),
        ]
    )
    beats = beat_ages(replies[0], time_ms(replies[1]))
    active, names, logged, bound, newest = replies[2:]
    now_ms = time_ms(replies[1])
    urgent = await most_urgent(queue, tokens, names)
    counts = await read_counts(urgent[: max(max_requests, waiting_tokens.MOST_READ)])
    requests = counts[:max_requests]
    rows = [WaitingRow.of(one) for one in counts]
    workers = (await list_workers(queue)).workers
    max_waiting, waits, until, text = bound
    pause = QueuePause(read_until(until), now_ms)
    away = len({name.decode("utf-8", "replace") for name in names} - {one.id for one in urgent})
    waits_now = backlog_of(
        *(rows, active, endings_of(queue, newest), workers, now_ms),
        is_paused=pause.is_paused,
        away=away,
    )
    stale = await waiting_tokens.count_stale(queue, tokens)
    lanes, delayed = waiting_tokens.without_stale(tokens.counts, stale)
    rate = parse_queue_rate(queue, text)
    return QueueStatus(
        queue=queue,
        backlog=waits_now,
        lanes=lanes,
        delayed=delayed,
        stale=stale.total(),
        shards=spread.present.numbers,
        workers=tuple(name for name, age_ms in beats.items() if not is_late(age_ms)),
        beats=beats,
        states=dict(Counter(one.state for one in requests)),
        requests=tuple(requests),
        more=max(0, active - max_requests),
        ended=logged,
        max_waiting=int(max_waiting) if max_waiting else None,
        admitted=int(waits or 0) if max_waiting else None,
        is_paused=pause.is_paused,
        paused_until_ms=pause.until_ms,
        rate=rate.words if rate is not None else None,
        long_calls=tuple(await long_calls_of(queue, workers)),
    )
