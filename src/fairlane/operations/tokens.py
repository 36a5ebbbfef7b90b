"""Dispatches the tokens of a script's reply to their lanes; pops them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.errors import RedisUnreachable
from fairlane.model import Token
from fairlane.protocol import keys, request_hash, scripts
from fairlane.protocol.lua import Summary
from fairlane.protocol.steps import Arg, Batch, Call, Command, Operation, Pop, run_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fairlane.protocol.lua import Reply


Part = tuple[list[Arg], list[Arg]]  # what goes to one lane: tokens now; tokens later, each with ms
Minted = tuple[str, list[Any]]  # a request and its tokens: flat lane, permit, delay ms, from mint
Ending = tuple[str, Sequence[Any]]  # a request and its summary, as the reply `ended` brings it
GIVEN = b"-"  # stands for the lane of what leaves its keys, see lua/v1/lib/request_limits.lua
_MOST = 900  # arguments of one call
_MOST_ENDINGS = 75


def insert(queue: str, request_id: str, tokens: list[Any]) -> list[Call[Any]]:
    """Returns the calls that dispatch the tokens of one request, as mint returned them."""
    return insert_tokens(queue, [(request_id, tokens)]) if tokens else []


def insert_tokens(queue: str, minted: Iterable[Minted]) -> list[Call[Any]]:
    """Returns the calls that dispatch the tokens of many requests, few calls of bounded size."""
    calls: list[Call[Any]] = []
    parts: dict[bytes, Part] = {}  # by lane
    placed: dict[bytes, list[Arg]] = {}  # by lane: tokens that wait among those of their tenant
    keyed = list[tuple[bytes, bytes]]()  # lane and token of those that name keys
    given = list[tuple[bytes, bytes]]()  # what leaves keys: before others are placed
    size = 0
    for request_id, tokens in minted:
        name = request_id.encode()
        for at in range(0, len(tokens), 3):
            lane, permit, delay = tokens[at : at + 3]
            if not delay and b"%" in permit:
                row = lane, name + b"#" + permit
                (given if lane == GIVEN else keyed).append(row)
                continue
            if size > _MOST - 5:  # a lane's three arguments and two for a token
                calls += _insertions(queue, parts)
                parts, size = {}, 0
            part = parts.get(lane)
            if part is None:
                part = parts[lane] = ([], [])
                size += 3
            token = name + b"#" + permit
            if delay:
                part[1].extend((token, delay))
                size += 2
            elif b"@" in permit:  # before its placeholder
                placed.setdefault(lane, []).append(token)
                part[0].append(PLACEHOLDER)
                size += 1
            else:
                part[0].append(token)
                size += 1
    calls = [*calls, *_insertions(queue, parts)] if parts else calls
    calls += place_tokens(queue, given + keyed)
    return [*add_turns(queue, placed), *calls] if placed else calls


def place_tokens(queue: str, keyed: Sequence[tuple[bytes, bytes]]) -> list[Call[Any]]:
    """Returns the calls that dispatch tokens that name keys, each given with its lane."""
    flat: list[Arg] = [part for pair in keyed for part in pair]
    return [
        scripts.place_tokens(keys.of_limits(queue)[:3], rows=flat[at : at + _MOST])
        for at in range(0, len(flat), _MOST)
    ]


def _insertions(queue: str, parts: dict[bytes, Part]) -> list[Call[Any]]:
    """Returns a call for each shard."""
    shards: dict[int, dict[int, Part]] = {}
    for number, part in parts.items():
        shard, lane = divmod(int(number), keys.LANES)
        shards.setdefault(shard, {})[lane] = part
    return [_insertion(queue, shard, lanes) for shard, lanes in shards.items()]


def _insertion(queue: str, shard: int, parts: dict[int, Part]) -> Call[Any]:
    lanes, delayed = keys.lanes(queue, shard), keys.delayed(queue, shard)
    names, args = [delayed], list[Arg]()
    for lane, (awake, later) in parts.items():
        names.append(lanes[lane])
        args += (lane, len(awake), len(later) // 2, *awake, *later)
    call = scripts.insert_tokens(names, tokens=args)
    call.apart = partial(_insert_apart, lanes, delayed, parts)
    return call


async def _insert_apart(lanes: tuple[bytes, ...], delayed: bytes, parts: dict[int, Part]) -> int:
    """Calls insert_tokens for one key at a time, which takes the place of both its keys."""
    calls = []
    for lane, (awake, later) in parts.items():
        if awake:
            calls.append(_one_key(lanes[lane], (lane, len(awake), 0, *awake)))
        if later:
            calls.append(_one_key(delayed, (lane, 0, len(later) // 2, *later)))
    counts: list[int] = await Batch(calls)
    return sum(counts)


def _one_key(key: bytes, args: Sequence[Arg]) -> Call[int]:
    return scripts.insert_tokens((key, key), tokens=args)


def push(key: bytes, words: Sequence[Arg], ttl_ms: int = 0) -> list[Call[Any]]:
    """Returns the calls that put words where the next pop takes them, also on a full Redis.

    With `ttl_ms` the whole list expires.
    """
    return [
        scripts.push((key,), ttl=ttl_ms, words=words[at : at + _MOST])
        for at in range(0, len(words), _MOST)
    ]


def retire(queue: str, request_id: str, summary: Sequence[Any]) -> Call[Any]:
    """Returns the call that moves an ended request from `active` into the completion log."""
    return retire_all(queue, [(request_id, summary)])[0]


def retire_all(queue: str, ended: Iterable[Ending]) -> list[Call[Any]]:
    """Returns the calls that move ended requests from `active` into the completion log."""
    endings = [(request_id, Summary(*summary)) for request_id, summary in ended]
    if not endings:
        return []
    parts = [endings[at : at + _MOST_ENDINGS] for at in range(0, len(endings), _MOST_ENDINGS)]
    names = (keys.active(queue), keys.logged(queue), keys.completed(queue), *keys.bound(queue))
    return [
        scripts.retire(
            names,
            least=settings.MARKER_LEAST_MS,
            longest=settings.MARKER_MS,
            most=settings.LOG_MOST,
            endings=[arg for request_id, end in part for arg in (request_id, *end.logged)],
        )
        for part in parts
    ]


def marker_ms(retain_ms: int) -> int:
    """Returns how long a log marker outlives the tombstone of a request with this retention."""
    return min(settings.MARKER_MS, max(settings.MARKER_LEAST_MS, retain_ms))


def drop_active(queue: str, request_id: str | bytes, seen: str, *, gone: bool = False) -> Call[int]:
    """Returns the call that takes an entry out of `active` while its score is still `seen`.

    `gone`: there is no such request; if there was one, that is logged as `lost`.
    """
    return scripts.drop_active(
        (keys.active(queue), keys.completed(queue), *keys.bound(queue)),
        id=request_id,
        seen=seen,
        gone=b"1" if gone else b"0",
        most=settings.LOG_MOST,
    )


def seen_to_exist(due_ms: int) -> str:
    """Returns the score in `active` of a request that exists; if it vanishes, it is lost."""
    return f"{due_ms}.5"


def was_seen(score: bytes | str | float) -> bool:
    """Returns True if a score in `active` is of a request that was seen to exist."""
    return float(score) % 1 != 0


def reschedule_active(queue: str, rows: list[Arg]) -> Call[int]:
    """Returns the call that moves entries of `active` whose scores are still those seen.

    Each row is a request, the score seen, and the next one; at most 300 rows.
    """
    return scripts.reschedule_active((keys.active(queue),), rows=rows)


@lru_cache(maxsize=1024)
def pop(queue: str, block_ms: int, worker: str | None = None, most: int = 1, shard: int = 0) -> Pop:
    """Returns the blocking pop of up to `most` tokens of one lane, the most urgent that has any.

    `worker` may be woken from it.
    """
    wake = () if worker is None else (keys.wake(queue, worker, shard),)
    return Pop((*wake, *keys.lanes(queue, shard)), block_ms, most)


@lru_cache(maxsize=4096)
def pop_ahead(queue: str, lane: int, most: int, shard: int = 0) -> Pop:
    """Returns the pop of what is there now, of this priority or a more urgent one."""
    return Pop(keys.lanes(queue, shard)[: lane + 1], 0, most)


def parse(raw: bytes) -> Token | None:
    """Reads `<id>#<k>.<g>` with its `@<turn>` and `%<keys>`; None for what no release wrote."""
    request_id, _, permit = raw.partition(b"#")
    permit, _, limits = permit.partition(b"%")
    number, _, turn = permit.partition(b"@")
    k, _, g = number.partition(b".")
    if not (request_id and k.isdigit() and g.isdigit()):
        return None
    shown = request_id.decode("ascii", "replace")
    texts = (text.decode("ascii", "replace") for text in (turn, limits))
    return Token(shown, k.decode(), g.decode(), *texts)


async def count_stop(queue: str) -> None:
    """Counts a request that was stopped while it is worked on: cancelled, discarded or overdue.

    The supervisors of its handlers read the count. If this fails, they see the stop when they
    extend a lease.
    """
    count = Command(b"HINCRBY", keys.conf(queue), b"cancels", 1)
    with suppress(RedisUnreachable):
        await Batch([count], lenient=True, away_s=settings.AWAY_S)


async def count_time_limit(queue: str) -> None:
    """Counts a request that was given another time limit, so that workers read it for its calls.

    If this fails, only the calls of later slices have the new limit.
    """
    count = Command(b"HINCRBY", keys.conf(queue), b"time_limits", 1)
    with suppress(RedisUnreachable):
        await Batch([count], lenient=True, away_s=settings.AWAY_S)


# ------------------------------------------------------------------ turns
# The tokens of requests that name a tenant: added, and taken for placeholders of their lane.
#
# See lua/v1/lib/turns.lua for the order in which tenants have their turns.


PLACEHOLDER = b"@"  # in a lane, for one token of a tenant
_MAX_TURNS = 900  # tokens of one call
_MOST_ROWS = 250
_PAGE = 1000


def add_turns(queue: str, placed: Mapping[bytes, Sequence[Arg]]) -> list[Call[Any]]:
    """Returns the calls that add the tokens of each lane; their placeholders follow them."""
    calls: list[Call[Any]] = []
    for number, tokens in placed.items():
        shard, lane = divmod(int(number), keys.LANES)
        calls += [
            scripts.add_turns(
                keys.turns(queue, shard), lane=lane, tokens=tokens[first : first + _MAX_TURNS]
            )
            for first in range(0, len(tokens), _MAX_TURNS)
        ]
    return calls


async def take_turns(queue: str, lane: bytes, popped: list[bytes]) -> list[bytes]:
    """Returns the words popped from a lane, with tokens in place of the placeholders.

    There may be fewer tokens than placeholders.
    """
    count = popped.count(PLACEHOLDER)
    if not count:
        return popped
    shard, number = divmod(keys.number_of(lane), keys.LANES)
    call = scripts.take_turns(keys.turns(queue, shard), lane=number, count=count)
    taken: list[bytes] = await call
    return [*(word for word in popped if word != PLACEHOLDER), *taken]


def first_of_lane(queue: str, lane: int, most: int) -> Command:
    """Returns the command that reads up to `most` members of a lane, tenant by tenant."""
    shard, number = divmod(lane, keys.LANES)
    bounds = b"[%d|" % number, b"(%d}" % number  # } follows |
    return Command(b"ZRANGEBYLEX", keys.turns(queue, shard)[0], *bounds, b"LIMIT", 0, most)


def token_of(member: bytes) -> bytes:
    """Returns the token in a member."""
    return member.split(b"|", 3)[3]


def lane_of(member: bytes) -> int:
    """Returns the lane of a member, within its shard."""
    return int(member.partition(b"|")[0])


async def read(queue: str, lane: int, tenants: Iterable[str]) -> list[bytes]:
    """Returns all tokens of these tenants in a lane."""
    shard, number = divmod(lane, keys.LANES)
    key = keys.turns(queue, shard)[0]
    found: list[bytes] = []
    for tenant in tenants:
        name = f"{number}|{tenant}".encode()
        low, page = b"[%b|" % name, list[bytes]()
        while not page or len(page) == _PAGE:
            page = await Command(
                b"ZRANGEBYLEX", key, low, b"(%b}" % name, b"LIMIT", 0, _PAGE
            )  # in the order of their arrival
            found += map(token_of, page)
            if not page:
                break
            low = b"(" + page[-1]
    return found


def charge_turns(queue: str, costs: Iterable[tuple[int, str, int, int]]) -> list[Call[Any]]:
    """Returns the calls that charge what turns have cost.

    Each row is a lane, the turn's share and tenant, the number of turns, and tenths of ms.
    """
    flat: list[Arg] = [part for row in costs for part in row]
    size = 4 * _MOST_ROWS
    tenants = keys.turns(queue)[1:]
    return [
        scripts.charge_turns(tenants, rows=flat[first : first + size])
        for first in range(0, len(flat), size)
    ]


# ------------------------------------------------------------------ queued permits
# Finds whether permits are queued for given tokens: else a token is stale.


FIRST = ("0", "1")  # the permit and g of a new request's first token


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
        if text is None and (one.k, one.g) == FIRST
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
    counts = {place: texts.count(PLACEHOLDER) for place, texts in found.items()}
    steps = {
        place: first_of_lane(queue, place[0] * keys.LANES + place[1], count)
        for place, count in counts.items()
        if count
    }
    if steps:
        replies = await run_all(list(steps.values()))
        for place, members in zip(steps, replies, strict=True):
            words = [word for word in found[place] if word != PLACEHOLDER]
            found[place] = words + list(map(token_of, members))
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


# ------------------------------------------------------------------ follow-up
# What a reply asks its caller to do next: dispatch the tokens, or log the end of the request.


def given_up(request_id: str, summary: Summary) -> list[Minted]:
    """Returns what leaves keys in another slot, because this call has ended its request."""
    return [(request_id, [*summary.given])] if summary.given else []


def follow_up(queue: str, *replies: tuple[str, Reply]) -> list[Call[Any]]:
    """Returns the calls that follow these replies, each given with its request.

    An `ended` moves its request into the completion log; the tokens of any other are dispatched.
    """
    minted, ended = list[Minted](), list[Ending]()
    for request_id, reply in replies:
        if reply.is_ended:
            ended.append((request_id, reply.summary))
            minted += given_up(request_id, reply.summary)
        elif reply.has_tokens and (tokens := reply.tokens):
            minted.append((request_id, tokens))
    return [*insert_tokens(queue, minted), *retire_all(queue, ended)]
