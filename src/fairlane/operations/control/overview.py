"""A queue at a glance: its tokens by lane, its workers, its most urgent requests.

It only reads. The cost is bounded, however many requests and tokens wait.
"""

from __future__ import annotations

from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.text import of_queue
from fairlane.errors import FairlaneError
from fairlane.model import ENDED_STATES, Progress
from fairlane.operations.batching import run_all
from fairlane.operations.control.request_state import asks_of_progress, progress_of
from fairlane.operations.lease.queued_permits import are_queued
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.lease.tokens import parse
from fairlane.operations.maintenance.dead_workers import is_late
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_READ = 5_000  # tokens, and entries of `active`
_DELAYED = -1  # stands for a priority: tokens that are due later
_FIELDS = ("state", "queue", "priority", "born")

Place = tuple[int, int]  # a shard; a priority, or _DELAYED


class _Waiting(NamedTuple):
    """The number of tokens at each place, and the first tokens of each, the next one first."""

    counts: dict[Place, int]
    tokens: dict[Place, list[bytes]]


def queue_status(queue: str, most: int = 1000) -> Operation[dict[str, Any]]:
    """Returns counts of one queue: tokens by lane, delayed tokens, workers, unfinished requests.

    `requests` are the `most` most urgent ones among the requests of the first MOST_READ tokens and
    the first MOST_READ entries of `active`; `more` is how many others are unfinished. `lanes` and
    `delayed` leave out stale tokens, which can start nothing; `stale` counts those. `workers` are
    those without a late beat; `beats` is the age of each last beat in ms, until the record expires.
    `waiting` is counted only in a queue with a bound, `max_waiting`; else both are None.
    """
    spread = yield from read_shards(queue)
    waiting = yield from _waiting(queue, spread.served)
    replies = yield Batch(
        [
            Command(b"ZRANGE", keys.workers(queue), 0, -1, b"WITHSCORES"),
            Command(b"TIME"),
            Command(b"ZCARD", keys.active(queue)),
            Command(b"ZRANGE", keys.active(queue), 0, MOST_READ - 1),
            Command(b"XLEN", keys.completed(queue)),
            Command(b"HMGET", keys.conf(queue), b"max_waiting", b"waiting"),
        ]
    )
    workers, time, active, names, logged, bound = replies
    beats = _beats(workers, time_ms(time))
    requests = yield from _most_urgent(queue, waiting, names, most)
    stale = yield from _stale(queue, waiting)
    lanes, delayed = _without(waiting.counts, stale)
    return {
        "queue": queue,
        "lanes": lanes,
        "delayed": delayed,
        "stale": stale.total(),
        "shards": list(spread.present.numbers),
        "workers": [name for name, age_ms in beats.items() if not is_late(age_ms)],
        "beats": beats,
        "requests": requests,
        "more": max(0, active - most),
        "logged": logged,
        "max_waiting": int(bound[0]) if bound[0] else None,
        "waiting": int(bound[1] or 0) if bound[0] else None,
    }


def unserved(queue: str) -> Operation[str]:
    """Returns the remedy for a queue without a worker; "" if it has one.

    Also "" if the workers cannot be read, because the caller reports something more important.
    """
    key = keys.workers(queue)
    asked = [Command(b"ZRANGE", key, 0, -1, b"WITHSCORES"), Command(b"TIME")]
    try:
        workers, time = yield Batch(asked, patience_s=0.0, away_s=settings.AWAY_S)
    except FairlaneError:
        return ""
    beats = _beats(workers, time_ms(time))
    if not all(is_late(age_ms) for age_ms in beats.values()):
        return ""
    return (
        f"no worker takes from queue {queue}: "
        f"start one with rq-worker --handler module:function{of_queue(queue)}"
    )


def _beats(workers: Sequence[bytes], now_ms: int) -> dict[str, int]:
    """Returns the age of each worker's last beat, unless its record has expired since."""
    pairs = zip(workers[::2], workers[1::2], strict=True)
    ages = {
        name.decode("utf-8", "replace"): max(0, now_ms - int(float(beat))) for name, beat in pairs
    }
    return {name: ages[name] for name in sorted(ages) if ages[name] <= settings.WORKER_TTL_MS}


# ------------------------------------------------------------------ requests


def _most_urgent(
    queue: str, waiting: _Waiting, names: Iterable[bytes], most: int
) -> Operation[list[Progress]]:
    """Returns the unfinished requests among these tokens and names, the most urgent first."""
    listed = [name.decode("utf-8", "replace") for name in names]
    parsed = (parse(token) for tokens in waiting.tokens.values() for token in tokens)
    ids = list(dict.fromkeys([*(token.request_id for token in parsed if token), *listed]))
    found = []
    unretired = frozenset(listed)
    replies = yield from run_all([hmget(name, *_FIELDS) for name in ids])
    for name, reply in zip(ids, replies, strict=True):
        state, home, priority, born = parse_fields(_FIELDS, reply)
        is_over = state in ENDED_STATES and name not in unretired
        if home == queue and state != "abandoned" and not is_over:
            found.append((int(priority or 0), int(born or 0), name))
    chosen = [name for _, _, name in sorted(found, key=itemgetter(0, 1))[:most]]
    replies = yield from run_all(asks_of_progress(chosen))
    rows = zip(chosen, replies[::2], replies[1::2], strict=True)
    all_found = (progress_of(name, fields, held) for name, fields, held in rows)
    return [one for one in all_found if one is not None]


# ------------------------------------------------------------------ tokens


def _waiting(queue: str, shards: Sequence[int]) -> Operation[_Waiting]:
    """Counts all tokens, and reads the first of them, from the most urgent lane on."""
    places = [(shard, priority) for priority in range(keys.LANES) for shard in shards]
    places += [(shard, _DELAYED) for shard in shards]
    replies = yield from run_all([_count(queue, place) for place in places])
    counts = {place: count for place, count in zip(places, replies, strict=True) if count}
    return _Waiting(counts, (yield from _read(queue, counts)))


def _read(queue: str, counts: dict[Place, int]) -> Operation[dict[Place, list[bytes]]]:
    """Returns the first tokens of these places, MOST_READ of them in all."""
    steps, left = dict[Place, Command](), MOST_READ
    for place, count in counts.items():
        if left > 0:
            steps[place] = _first(queue, place, min(left, count))
            left -= count
    replies = yield from run_all(list(steps.values()))
    return {place: _texts(place, reply) for place, reply in zip(steps, replies, strict=True)}


def _count(queue: str, place: Place) -> Command:
    shard, priority = place
    if priority == _DELAYED:
        return Command(b"ZCARD", keys.delayed(queue, shard))
    return Command(b"LLEN", keys.lanes(queue, shard)[priority])


def _first(queue: str, place: Place, most: int) -> Command:
    """Returns the command that reads the tokens of a place that are popped or due first."""
    shard, priority = place
    if priority == _DELAYED:
        return Command(b"ZRANGE", keys.delayed(queue, shard), 0, most - 1)
    return Command(b"LRANGE", keys.lanes(queue, shard)[priority], -most, -1)


def _texts(place: Place, reply: list[bytes]) -> list[bytes]:
    """Returns tokens in their order; a delayed one begins with its lane."""
    if place[1] == _DELAYED:
        return [member.partition(b"|")[2] for member in reply]
    return reply[::-1]


def _stale(queue: str, waiting: _Waiting) -> Operation[Counter[int]]:
    """Counts stale tokens by priority: those whose permits wait for no token, or for another one.

    A token may be popped between the two reads. So the suspects are read again: a token that is
    still in its lane was there when its permit was read.
    """
    placed = [(place, token) for place, tokens in waiting.tokens.items() for token in tokens]
    suspects = yield from _not_wanted(placed)
    if not suspects:
        return Counter()
    there = yield from _read(queue, {place: waiting.counts[place] for place, _ in suspects})
    still = {place: frozenset(tokens) for place, tokens in there.items()}
    return Counter(place[1] for place, token in suspects if token in still[place])


def _not_wanted(placed: list[tuple[Place, bytes]]) -> Operation[list[tuple[Place, bytes]]]:
    """Returns the tokens whose permits are not queued for them, or not at this place."""
    parsed = [parse(token) for _, token in placed]
    asked = [token for token in parsed if token is not None]
    queued = iter((yield from are_queued(asked)))
    return [
        one for one, token in zip(placed, parsed, strict=True) if token is None or not next(queued)
    ]


def _without(counts: dict[Place, int], stale: Counter[int]) -> tuple[dict[int, int], int]:
    """Returns the tokens of each priority, and those due later, without the stale ones."""
    all_tokens = Counter[int]()
    for (_, priority), count in counts.items():
        all_tokens[priority] += count
    left = {place: all_tokens[place] - stale[place] for place in sorted(all_tokens)}
    delayed = max(0, left.pop(_DELAYED, 0))
    return {lane: count for lane, count in left.items() if count > 0}, delayed
