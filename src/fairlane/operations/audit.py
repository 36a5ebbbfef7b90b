"""The audit: finds lost tokens and forgotten leases without a check of every request.

It compares the unfinished requests with the lanes. Both are lists of names, so the comparison is
cheap for hundreds of thousands of requests. A request with a token in a lane waits for its turn.
Requests without one are few: workers hold them, they wait for something else, or their tokens are
lost. The audit glances only at these, at requests that a worker has held for long, and at a sample
of the rest, because a request with several tokens may have lost some of them.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.model import Token
from fairlane.operations import apart_keys, limit_keys, tokens
from fairlane.operations.lease import reap
from fairlane.operations.shards import change_shards, read_shards
from fairlane.operations.tokens import are_queued, push, was_seen
from fairlane.operations.workers import NOW, glance, glances, look_at, settle_reaps
from fairlane.protocol import keys
from fairlane.protocol.steps import TOGETHER, Batch, Command, call_each, run_all, run_each_or_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlane.protocol.scripts import GlanceReply, ReapReply
    from fairlane.protocol.steps import Call


# ------------------------------------------------------------------ lost tokens
# Finds permits whose tokens are in no lane for too long, and mints these tokens again.


_FEW = 20  # up to so many tokens are looked up one by one
_LANE_PAGE = 1000  # tokens of a lane read in one call


class Suspect(NamedTuple):
    """A permit whose token has been on its way for too long."""

    request_id: str
    k: str
    g: str
    lane: int
    turn: str = ""
    keys: str = ""

    @property
    def token(self) -> str:
        """Returns the token that should be in the lane, among those of its tenant, or in a key."""
        return self.as_token.text

    @property
    def as_token(self) -> Token:
        """Returns the token in its parts."""
        return Token(self.request_id, self.k, self.g, self.turn, self.keys)

    @property
    def shard(self) -> int:
        """Returns the shard of the lane; 0 = the queue's own lanes."""
        return self.lane // keys.LANES

    def place_in_delayed(self, queue: str) -> tuple[bytes, str]:
        """Returns the key of `delayed` and the member for this token if it is due later."""
        shard, priority = divmod(self.lane, keys.LANES)
        return keys.delayed(queue, shard), f"{priority}|{self.token}"


async def queued_long(request_id: str, grace_ms: int = settings.TOKEN_GRACE_MS) -> list[Suspect]:
    """Returns the permits that were queued, and due, at least a grace ago and still are."""
    return suspects_of(request_id, await glance("", request_id, grace_ms))


def suspects_of(request_id: str, reply: GlanceReply) -> list[Suspect]:
    """Returns the permits that a reply of glance names."""
    if not reply.is_ok:
        return []
    flat = [part.decode() for part in reply.late_permits]
    rows = zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True)
    return [
        Suspect(request_id, k, g, int(lane), *_turn_and_keys(suffix)) for k, g, lane, suffix in rows
    ]


def _turn_and_keys(suffix: str) -> tuple[str, str]:
    turn, _, named = suffix.partition("%")
    return turn.removeprefix("@"), named


async def remint_lost(
    queue: str, suspects: list[Suspect], failed: dict[str, FairlaneError] | None = None
) -> int:
    """Mints again the tokens that are in no lane, the most urgent first; returns how many.

    If a worker has just popped the token, that costs one stale token. If `failed` is given, it gets
    a request that can't be read with its error, and the others get their tokens. The error of a
    shard that does not answer is raised last.
    """
    if not suspects:
        return 0
    spread = await read_shards(queue)
    astray = dict.fromkeys(one.request_id for one in suspects if one.shard not in spread.served)
    here = [one for one in suspects if one.request_id not in astray]
    lost, errors = await find_lost(queue, here)
    replies = await remint(queue, lost, errors)
    count = sum(
        len(lost[name]) for name, reply in replies.items() if not _note_error(name, reply, failed)
    )
    for name in astray:  # in a shard that no worker serves, because `conf` was rolled back
        try:
            await change_shards(queue, name, spread.present)
            count += 1
        except FairlaneError as error:
            _note_error(name, error, failed)
    if errors:
        raise errors[0]
    return count


def _note_error(name: str, reply: Any, failed: dict[str, FairlaneError] | None) -> bool:
    """Returns True for an error, which it notes in `failed`, or raises if that is None."""
    if not isinstance(reply, FairlaneError):
        return False
    if failed is None:
        raise reply
    failed[name] = reply
    return True


async def remint(
    queue: str, lost: dict[str, list[Suspect]], errors: list[FairlaneError] | None = None
) -> dict[str, ReapReply | FairlaneError]:
    """Mints the tokens of these permits again; returns each request's reply or error.

    The error of a shard that takes no tokens is added to `errors`, or raised if that is None.
    """
    names = sorted(lost, key=lambda name: min(one.lane % keys.LANES for one in lost[name]))
    replies: dict[str, ReapReply | FairlaneError] = {}
    for start in range(0, len(names), TOGETHER):
        part = names[start : start + TOGETHER]
        calls = [reap(queue, name, missing=_pairs(lost[name])) for name in part]
        found = await call_each(calls)
        answers = dict(zip(part, found, strict=True))
        replies |= answers
        try:
            await settle_reaps(queue, answers)
        except FairlaneError as error:
            if errors is None:
                raise
            errors.append(error)
    return replies


def _pairs(permits: list[Suspect]) -> list[str]:
    return [text for one in permits for text in (one.k, one.g)]


async def find_lost(
    queue: str, suspects: list[Suspect]
) -> tuple[dict[str, list[Suspect]], list[FairlaneError]]:
    """Returns the suspects whose tokens are in no lane, by request; and the errors of reading.

    `delayed` is read first and the lane last, because a token moves only in that direction. So a
    token that was in neither when it was read is lost.
    """
    asked = [Command(b"ZSCORE", *suspect.place_in_delayed(queue)) for suspect in suspects]
    due = await run_each_or_error(asked)
    waiting = [suspect for suspect, score in zip(suspects, due, strict=True) if score is None]
    if any(one.keys for one in waiting):
        in_line = await limit_keys.wait_in_line(queue, [one.as_token for one in waiting])
        waiting = [one for one in waiting if one.token not in in_line]
    errors = [score for score in due if isinstance(score, FairlaneError)]
    lost: dict[str, list[Suspect]] = {}
    for lane in sorted({suspect.lane for suspect in waiting}):
        here = {one.token.encode(): one for one in waiting if one.lane == lane}
        try:
            named = {one.turn.partition(":")[2] for one in here.values() if one.turn}
            # Turns are read before the lane, because tokens move from turns to the lane.
            present = set(await tokens.read(queue, lane, named)) if named else set[bytes]()
            present |= await _present(keys.lane(queue, lane), here.keys() - present)
        except FairlaneError as error:
            errors.append(error)
            continue
        for token, suspect in here.items():
            if token not in present:
                lost.setdefault(suspect.request_id, []).append(suspect)
    return lost, errors


async def still_lost(queue: str, suspects: list[Suspect]) -> dict[str, list[Suspect]]:
    """Returns the suspects whose tokens are in no lane and not in `delayed`, by request.

    Each permit is read again at the end, because a worker that had its token may have acquired.
    """
    lost, errors = await find_lost(queue, suspects)
    if errors:
        raise errors[0]
    missing = [one for permits in lost.values() for one in permits]
    waits = await are_queued([Token(one.request_id, one.k, one.g) for one in missing])
    found: dict[str, list[Suspect]] = {}
    for one in compress(missing, waits):
        found.setdefault(one.request_id, []).append(one)
    return found


async def _present(lane: bytes, tokens: set[bytes]) -> set[bytes]:
    """Returns the tokens that are in the lane: by LPOS for a few, by reading all of it for many.

    The lane is read from the end at which tokens come in, so that no token moves past the reader.
    But a lease that goes on may add its next token there. So if some are missing, it is read again.
    """
    if not tokens:
        return set()
    if len(tokens) <= _FEW:
        asked = sorted(tokens)
        places = await Batch([Command(b"LPOS", lane, token, b"RANK", -1) for token in asked])
        return {token for token, place in zip(asked, places, strict=True) if place is not None}
    present: set[bytes] = set()
    for _ in range(2):
        first, is_last = 0, False
        while not is_last and len(present) < len(tokens):
            page = await Command(b"LRANGE", lane, first, first + _LANE_PAGE - 1)
            present |= tokens.intersection(page)
            first += _LANE_PAGE
            is_last = len(page) < _LANE_PAGE
    return present


_PAGE = 2000  # entries of one reply
_CALM_MS = 60_000  # a request for which nothing is due within this time is calm


class Audit:
    """Audits one queue repeatedly; each audit keeps a few facts for the next one."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._taken: frozenset[bytes] = frozenset()  # tokens that workers held at the last audit
        self._count = 0
        self._sampled = 0  # how many requests with a token in a lane the samples have gone through
        self._calm: dict[bytes, float] = {}  # request in no lane -> when something is due, ms
        self._workers: set[bytes] = set()  # workers that held tokens
        self._missing = Counter[bytes]()  # lane -> placeholders that it lacked at the last audit

    async def run(self, grace_ms: int, failed: dict[str, FairlaneError] | None = None) -> int:
        """Audits once; returns how many lost tokens it minted again.

        A permit whose token has been on its way for less than `grace_ms` is not suspected. A
        request that can't be read is put into `failed` with its error, and the audit goes on. The
        error of a lane that can't be read is raised at the end.
        """
        failed = {} if failed is None else failed
        unfinished = await self._unfinished()
        waiting, unread = await self._waiting()
        held = await self._held_for_long()
        # A request that seems absent may wait in a lane that was not read.
        absent = set[bytes]() if unread else unfinished.difference(waiting)
        now = await self._now()
        chosen = [*self._due(absent, now), *held, *self._sample(waiting)]
        names = dict.fromkeys(_request_ids(name for name in chosen if name in unfinished))
        suspects: list[Suspect] = []
        for name, reply in (await glances(self._queue, names, grace_ms)).items():
            try:
                if isinstance(reply, FairlaneError):
                    raise reply
                suspects += suspects_of(name, reply)
                self._note_calm(name, reply, now)
                if not reply.is_ok or reply.look_ms == NOW:
                    await self._look_at(name, is_gone=reply.is_gone)
            except FairlaneError as error:
                failed[name] = error
        minted = await remint_lost(self._queue, suspects, failed)
        if unread:
            raise unread[0]
        return minted

    async def _now(self) -> int:
        """Returns the dispatch slot's time in ms."""
        asked = [Command(b"EXISTS", keys.active(self._queue)), Command(b"TIME")]
        _, (seconds, _) = await Batch(asked)
        return int(seconds) * 1000

    def _due(self, absent: set[bytes], now: int) -> list[bytes]:
        """Returns the absent requests for which something may be due, and a few calm ones.

        Thousands of requests may be paused, or open and idle. A calm request is calm no more when
        it has been in a lane.
        """
        self._calm = {name: due for name, due in self._calm.items() if name in absent}
        calm = [name for name, due in self._calm.items() if due > now]
        for name in calm[: settings.AUDIT_SAMPLE]:  # those that are calm for longest come first
            del self._calm[name]
        return [name for name in absent if self._calm.get(name, 0) <= now]

    def _note_calm(self, name: str, reply: GlanceReply, now: int) -> None:
        """Notes a request for which nothing is due for long: no lease, no token on its way."""
        if not reply.is_ok or reply.late_permits:
            return
        look_ms = reply.look_ms
        if look_ms == 0 or look_ms > _CALM_MS:
            self._calm[name.encode()] = now + look_ms if look_ms else math.inf

    async def _look_at(self, name: str, *, is_gone: bool) -> None:
        """Checks a request that needs a reap, whose end is not logged, or that is gone.

        An intent whose request does not exist yet has a grace of its own: see look_after.
        """
        active = keys.active(self._queue)
        score, (seconds, _) = await Batch([Command(b"ZSCORE", active, name), Command(b"TIME")])
        if score is not None and (was_seen(score) or not is_gone):
            await look_at(self._queue, name, score.decode(), int(seconds) * 1000)

    async def _unfinished(self) -> set[bytes]:
        """Returns the unfinished requests; if there are very many, a part of them in each audit.

        An entry that moves while the pages are read may be missing: the next audit finds it.
        """
        active = keys.active(self._queue)
        parts = 1 + await Command(b"ZCARD", active) // settings.AUDIT_PART
        self._count += 1
        turn = self._count % parts
        found: set[bytes] = set()
        for page in await _pages(b"ZRANGE", active):
            found.update(page if parts == 1 else (n for n in page if crc32(n) % parts == turn))
        return found

    async def _waiting(self) -> tuple[list[bytes], list[FairlaneError]]:
        """Returns the requests with a token in a lane, by urgency, then those in `delayed`.

        Also returns the errors of reading, because a shard may be unreachable. `delayed` is read
        before the lanes, because tokens move only in that direction.
        """
        spread = await read_shards(self._queue)
        later, found = list[bytes](), list[bytes]()
        lanes: list[tuple[int, bytes]] = []
        unread: list[FairlaneError] = []
        for shard in spread.served:
            try:
                for page in await _pages(b"ZRANGE", keys.delayed(self._queue, shard)):
                    later += (member.partition(b"|")[2].partition(b"#")[0] for member in page)
                lanes += await self._used_lanes(shard)
            except FairlaneError as error:
                unread.append(error)
        there = Counter[bytes]()
        for _, lane in sorted(lanes):
            try:
                for page in await _pages(b"LRANGE", lane):
                    found += (token.partition(b"#")[0] for token in page)
                    there[lane] += page.count(tokens.PLACEHOLDER)
            except FairlaneError as error:
                unread.append(error)
        for shard in spread.served:
            try:
                found += await self._with_turns(shard, there)
            except FairlaneError as error:
                unread.append(error)
        if spread.names_keys:
            found += await self._with_keys()
        return [*dict.fromkeys(found + later)], unread

    async def _with_turns(self, shard: int, there: Counter[bytes]) -> list[bytes]:
        """Returns the requests of tokens that name a tenant; adds placeholders that were lost.

        `there`: the placeholders of each lane. A lane without any gets all that it lacks. In others
        some may be popped between the two reads. So such a lane gets at most as many as it lacked
        at the last audit.
        """
        lanes = keys.lanes(self._queue, shard)
        found, needed = list[bytes](), Counter[bytes]()
        for page in await _pages(b"ZRANGE", keys.turns(self._queue, shard)[0]):
            for member in page:
                found.append(tokens.token_of(member).partition(b"#")[0])
                needed[lanes[tokens.lane_of(member)]] += 1
        calls: list[Call[Any]] = []
        for lane in lanes:
            missing, before = max(0, needed[lane] - there[lane]), self._missing.pop(lane, 0)
            if count := min(missing, before) if there[lane] else missing:
                calls += push(lane, [tokens.PLACEHOLDER] * count)
            elif missing:
                self._missing[lane] = missing
        if calls:
            await Batch(calls)
        return found

    async def _with_keys(self) -> list[bytes]:
        """Corrects what keys hold; returns the requests of tokens that wait for a key."""
        named = await limit_keys.names_in_use(self._queue)
        if await limit_keys.check_all(self._queue, named) is None:
            await apart_keys.look_at(self._queue, named)
        return await limit_keys.waiting_requests(self._queue, named)

    async def _used_lanes(self, shard: int) -> list[tuple[int, bytes]]:
        """Returns the lanes of a shard that may have tokens, each with its priority."""
        lanes = keys.lanes(self._queue, shard)
        lengths = await Batch([Command(b"LLEN", lane) for lane in lanes], lenient=True)
        return [(i, lane) for i, lane in enumerate(lanes) if lengths[i] != 0]

    async def _held_for_long(self) -> list[bytes]:
        """Returns the requests of tokens that a worker has held since the last audit or longer."""
        # A worker without heartbeats leaves the registry, but its leases may last longer.
        self._workers.update(await Command(b"ZRANGE", keys.workers(self._queue), 0, -1))
        workers, now = list(self._workers), set[bytes]()
        asked = [Command(b"HGETALL", self._taken_key(name)) for name in workers]
        for name, fields in zip(workers, await run_all(asked), strict=True):
            if not fields:
                self._workers.discard(name)
            for words in fields[1::2]:
                now.update(words.split())
        both, self._taken = now & self._taken, frozenset(now)
        return [token.partition(b"#")[0] for token in both]

    def _taken_key(self, worker: bytes) -> bytes:
        return keys.taken(self._queue, worker.decode("utf-8", "replace"))

    def _sample(self, waiting: list[bytes]) -> list[bytes]:
        """Returns some requests with a token in a lane: the most urgent, and others in turn."""
        most = settings.AUDIT_SAMPLE // 2
        start = self._sampled if self._sampled < len(waiting) else 0
        self._sampled = start + most
        return waiting[:most] + waiting[start : start + most]


async def _pages(command: bytes, key: bytes) -> list[list[bytes]]:
    """Reads all of a list, or the members of a sorted set; returns its pages."""
    found: list[list[bytes]] = []
    while not found or len(found[-1]) == _PAGE:
        first = len(found) * _PAGE
        found.append(await Command(command, key, first, first + _PAGE - 1))
    return found


def _request_ids(raw: Iterable[bytes]) -> Iterator[str]:
    """Yields the names that are valid ids of requests."""
    for name in raw:
        try:
            yield keys.check_name("request id", name.decode("utf-8", "replace"))
        except InvalidArgument:
            continue
