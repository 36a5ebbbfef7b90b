"""Where the next token of a request is in the lanes, and which requests go before it.

Reads the lanes as `fairlane status` does: counts, and the first MOST_READ tokens. A request that
is at work may have no token in a lane. So what the workers took last is read, too.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from fairlane.found import LanePlace
from fairlane.operations.batching import run_each
from fairlane.operations.find.waiting import DELAYED, MOST_READ, read_waiting
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.lease.tokens import parse
from fairlane.operations.maintenance.queued_permits import are_queued
from fairlane.protocol import keys
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.model import Token
    from fairlane.operations.find.waiting import Waiting
    from fairlane.protocol.steps import Operation

MOST_WORKERS = 200  # workers whose requests are read


class InLane(NamedTuple):
    """A token that is not stale, and its lane."""

    lane: int
    token: Token


class Neighbours(NamedTuple):
    """The place of a request, the tokens ahead of it, and the requests of its lane behind it."""

    place: LanePlace
    lane: int
    ahead: list[InLane]
    behind: list[str]

    @property
    def ids(self) -> list[str]:
        """Returns the requests in their order."""
        return list(dict.fromkeys([*(one.token.request_id for one in self.ahead), *self.behind]))


def read_place(queue: str, request_id: str, priority: int) -> Operation[Neighbours]:
    """Returns where a request that can start is in its lanes.

    The lanes of a queue may be spread over shards. Workers take from all of these in turn, so the
    shard counts in which the fewest tokens are ahead.
    """
    spread = yield from read_shards(queue)
    waiting = yield from read_waiting(queue, spread.served)
    fresh = yield from _fresh_of(waiting)
    found = [
        one
        for shard in spread.served
        if (one := _in_shard(fresh.get(shard, []), request_id)) is not None
    ]
    if found:
        return min(found, key=lambda one: one.place.place)
    every = [one for tokens in fresh.values() for one in tokens]
    lanes = {place: count for place, count in waiting.counts.items() if place[1] != DELAYED}
    if sum(lanes.values()) <= MOST_READ:
        behind = _ids(one for one in every if one.lane == priority)
        return Neighbours(LanePlace({}, 0, is_lost=True), priority, [], behind)
    return _beyond(lanes, every, priority)


def read_at_work(queue: str, workers: Sequence[str]) -> Operation[list[str]]:
    """Returns the requests whose tokens these workers, at most MOST_WORKERS of them, took last."""
    asked = [Command(b"HGETALL", keys.taken(queue, name)) for name in workers[:MOST_WORKERS]]
    replies = yield from run_each(asked)
    texts = [text for reply in replies if isinstance(reply, list) for text in reply[1::2]]
    tokens = (parse(raw) for text in texts for raw in text.split())
    return list(dict.fromkeys(token.request_id for token in tokens if token is not None))


def _fresh_of(waiting: Waiting) -> Operation[dict[int, list[InLane]]]:
    """Returns the tokens of each shard in their order, without the stale ones."""
    placed = [
        (shard, InLane(priority, token))
        for (shard, priority), tokens in waiting.tokens.items()
        if priority != DELAYED
        for token in map(parse, tokens)
        if token is not None
    ]
    queued = yield from are_queued([one.token for _, one in placed])
    found: dict[int, list[InLane]] = {}
    for (shard, one), is_queued in zip(placed, queued, strict=True):
        if is_queued:
            found.setdefault(shard, []).append(one)
    return found


def _in_shard(tokens: Sequence[InLane], request_id: str) -> Neighbours | None:
    """Returns the place in one shard; None if the request has no token there."""
    own = [at for at, one in enumerate(tokens) if one.token.request_id == request_id]
    if not own:
        return None
    lane, ahead = tokens[own[0]].lane, list(tokens[: own[0]])
    behind = _ids(one for one in tokens[own[0] :] if one.lane == lane)
    behind.remove(request_id)
    return Neighbours(LanePlace(_by_lane(ahead), len(_ids(ahead))), lane, ahead, behind)


def _beyond(lanes: dict[tuple[int, int], int], read: Sequence[InLane], priority: int) -> Neighbours:
    """Returns the least place of a request whose tokens are behind all those that were read."""
    ahead = [one for one in read if one.lane <= priority]
    counts = _by_lane(ahead)
    for (_, lane), count in lanes.items():
        if lane < priority:
            counts[lane] = max(counts.get(lane, 0), count)
    return Neighbours(LanePlace(counts, len(_ids(ahead)), is_exact=False), priority, ahead, [])


def _by_lane(tokens: Iterable[InLane]) -> dict[int, int]:
    return dict(sorted(Counter(one.lane for one in tokens).items()))


def _ids(tokens: Iterable[InLane]) -> list[str]:
    return list(dict.fromkeys(one.token.request_id for one in tokens))
