"""The tokens of a queue: how many wait in each lane, the first of them, and which are stale.

The cost is bounded, however many tokens wait: 101 counts for each shard, and MOST_READ tokens.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.operations import tokens
from fairlane.operations.batching import run_all
from fairlane.operations.tokens import parse
from fairlane.protocol import keys, request_hash
from fairlane.protocol.steps import Command, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.model import Token


# ------------------------------------------------------------------ queued permits
# Finds whether permits are queued for given tokens: else a token is stale.


_FIRST = ("0", "1")  # the permit and g of a new request's first token


async def are_queued(
    tokens: Sequence[Token], ask: Callable[[Sequence[Command]], Operation[list[Any]]] = run_all
) -> list[bool]:
    """Returns for each token whether its permit waits for it; `ask` sends the commands.

    The first permit of a new request has no field (lua/v1/lib/permits.lua). So the
    counts are read for it, too.
    """
    texts = await ask([Command(b"HGET", keys.permits(one.request_id), one.k) for one in tokens])
    found = [
        isinstance(text, bytes) and text.startswith(f"q:{one.g}:".encode())
        for one, text in zip(tokens, texts, strict=True)
    ]
    first = [
        at
        for at, (one, text) in enumerate(zip(tokens, texts, strict=True))
        if text is None and (one.k, one.g) == _FIRST
    ]
    if first:
        names = ("seq", "queued")
        rows = await ask([request_hash.hmget(tokens[at].request_id, *names) for at in first])
        for at, row in zip(first, rows, strict=True):
            is_read = isinstance(row, list)
            found[at] = is_read and request_hash.parse_fields(names, row) == ["1", "1"]
    return found


MOST_READ = 1_000  # tokens, and entries of `active` or of the completion log
DELAYED = -1  # stands for a priority: tokens that are due later

Place = tuple[int, int]  # a shard; a priority, or DELAYED


class Waiting(NamedTuple):
    """The number of tokens at each place, and the first tokens of each, the next one first."""

    counts: dict[Place, int]
    tokens: dict[Place, list[bytes]]

    def request_ids(self) -> list[str]:
        """Returns the requests of the tokens that were read, in the order of the tokens."""
        parsed = (parse(token) for tokens in self.tokens.values() for token in tokens)
        return list(dict.fromkeys(token.request_id for token in parsed if token))


async def read_waiting(
    queue: str, shards: Sequence[int], most: int | None = None, *, is_spread: bool = False
) -> Waiting:
    """Counts all tokens, and reads the first `most` (default: MOST_READ), most urgent first.

    `is_spread`: it reads equally many of each lane instead.
    """
    places = [(shard, priority) for priority in range(keys.LANES) for shard in shards]
    places += [(shard, DELAYED) for shard in shards]
    replies = await run_all([_count(queue, place) for place in places])
    counts = {place: count for place, count in zip(places, replies, strict=True) if count}
    most = MOST_READ if most is None else most
    each = max(1, most // max(1, len(counts))) if is_spread else most
    reads = {place: min(count, each) for place, count in counts.items()}
    return Waiting(counts, await _read(queue, reads, most))


async def _read(queue: str, counts: dict[Place, int], most: int) -> dict[Place, list[bytes]]:
    """Returns the first tokens of these places, so many of each, and `most` of them in all."""
    steps, left = dict[Place, Command](), most
    for place, count in counts.items():
        if left > 0:
            steps[place] = _first(queue, place, min(left, count))
            left -= count
    replies = await run_all(list(steps.values()))
    found = {place: _texts(place, reply) for place, reply in zip(steps, replies, strict=True)}
    return await _with_turns(queue, found)


async def _with_turns(queue: str, found: dict[Place, list[bytes]]) -> dict[Place, list[bytes]]:
    """Returns the tokens with those of tenants in place of their placeholders.

    Whose turn it is comes out only when one is popped. So they are listed tenant by tenant.
    """
    counts = {place: texts.count(tokens.PLACEHOLDER) for place, texts in found.items()}
    steps = {
        place: tokens.first_of_lane(queue, place[0] * keys.LANES + place[1], count)
        for place, count in counts.items()
        if count
    }
    if steps:
        replies = await run_all(list(steps.values()))
        for place, members in zip(steps, replies, strict=True):
            words = [word for word in found[place] if word != tokens.PLACEHOLDER]
            found[place] = words + list(map(tokens.token_of, members))
    return found


def _count(queue: str, place: Place) -> Command:
    shard, priority = place
    if priority == DELAYED:
        return Command(b"ZCARD", keys.delayed(queue, shard))
    return Command(b"LLEN", keys.lanes(queue, shard)[priority])


def _first(queue: str, place: Place, most: int) -> Command:
    """Returns the command that reads the tokens of a place that are popped or due first."""
    shard, priority = place
    if priority == DELAYED:
        return Command(b"ZRANGE", keys.delayed(queue, shard), 0, most - 1)
    return Command(b"LRANGE", keys.lanes(queue, shard)[priority], -most, -1)


def _texts(place: Place, reply: list[bytes]) -> list[bytes]:
    """Returns tokens in their order; a delayed one begins with its lane."""
    if place[1] == DELAYED:
        return [member.partition(b"|")[2] for member in reply]
    return reply[::-1]


async def count_stale(queue: str, waiting: Waiting) -> Counter[int]:
    """Counts stale tokens by priority: those whose permits wait for no token, or for another one.

    A token may be popped between the two reads. So the suspects are read again: a token that is
    still in its lane was there when its permit was read.
    """
    placed = [(place, token) for place, tokens in waiting.tokens.items() for token in tokens]
    suspects = await _not_wanted(placed)
    if not suspects:
        return Counter()
    there = await _read(queue, {place: waiting.counts[place] for place, _ in suspects}, MOST_READ)
    still = {place: frozenset(tokens) for place, tokens in there.items()}
    return Counter(place[1] for place, token in suspects if token in still[place])


async def _not_wanted(placed: list[tuple[Place, bytes]]) -> list[tuple[Place, bytes]]:
    """Returns the tokens whose permits are not queued for them, or not at this place."""
    parsed = [parse(token) for _, token in placed]
    asked = [token for token in parsed if token is not None]
    queued = iter(await are_queued(asked))
    return [
        one for one, token in zip(placed, parsed, strict=True) if token is None or not next(queued)
    ]


def without_stale(counts: dict[Place, int], stale: Counter[int]) -> tuple[dict[int, int], int]:
    """Returns the tokens of each priority, and those due later, without the stale ones."""
    all_tokens = Counter[int]()
    for (_, priority), count in counts.items():
        all_tokens[priority] += count
    left = {place: all_tokens[place] - stale[place] for place in sorted(all_tokens)}
    delayed = max(0, left.pop(DELAYED, 0))
    return {lane: count for lane, count in left.items() if count > 0}, delayed
