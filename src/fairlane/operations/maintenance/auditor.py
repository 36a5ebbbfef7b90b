"""The audit: finds lost tokens and forgotten leases without a check of every request.

It compares the unfinished requests with the lanes. Both are lists of names, so the comparison is
cheap for hundreds of thousands of requests. A request with a token in a lane waits for its turn.
The others are few: workers hold them, they wait for something else, or their tokens are lost. The
audit glances only at these, at requests that a worker has held for long, and at a sample of the
rest, because a request with several tokens may have lost some of them.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING
from zlib import crc32

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument
from fairlane.operations.batching import run_all
from fairlane.operations.lease import turns
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.lease.tokens import push
from fairlane.operations.maintenance.lost_tokens import Suspect, remint_lost, suspects_of
from fairlane.operations.maintenance.registry import NOW, glances, look_at
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Call

_PAGE = 2000  # entries of one reply
_CALM_MS = 60_000  # a request for which nothing is due within this time is calm


class Audit:
    """The audits of one queue in turn; each keeps a little for the next."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._taken: frozenset[bytes] = frozenset()  # tokens that workers held at the last audit
        self._count = 0
        self._sampled = 0  # how many requests with a token in a lane the samples have gone through
        self._calm: dict[bytes, float] = {}  # request in no lane -> when something is due, ms
        self._workers: set[bytes] = set()  # workers that held tokens
        self._missing = Counter[bytes]()  # lane -> placeholders that it lacked at the last audit

    def run(self, grace_ms: int, failed: dict[str, FairlaneError] | None = None) -> Operation[int]:
        """Audits once; returns how many lost tokens it minted again.

        A permit whose token has been on its way for less than `grace_ms` is not suspected. A
        request that can't be read is put into `failed` with its error, and the audit goes on. The
        error of a lane that can't be read is raised at the end.
        """
        failed = {} if failed is None else failed
        unfinished = yield from self._unfinished()
        waiting, unread = yield from self._waiting()
        held = yield from self._held_for_long()
        # A request that seems absent may wait in a lane that was not read.
        absent = set[bytes]() if unread else unfinished.difference(waiting)
        now = yield from self._now()
        chosen = [*self._due(absent, now), *held, *self._sample(waiting)]
        names = dict.fromkeys(_request_ids(name for name in chosen if name in unfinished))
        suspects: list[Suspect] = []
        for name, reply in (yield from glances(self._queue, names, grace_ms)).items():
            try:
                if isinstance(reply, FairlaneError):
                    raise reply
                suspects += suspects_of(name, reply)
                self._note_calm(name, reply, now)
                if not reply.is_ok or reply.look_ms == NOW:
                    yield from self._look_at(name, is_gone=reply.is_gone)
            except FairlaneError as error:
                failed[name] = error
        minted = yield from remint_lost(self._queue, suspects, failed)
        if unread:
            raise unread[0]
        return minted

    def _now(self) -> Operation[int]:
        """Returns the dispatch slot's time in ms."""
        asked = [Command(b"EXISTS", keys.active(self._queue)), Command(b"TIME")]
        _, (seconds, _) = yield Batch(asked)
        return int(seconds) * 1000

    def _due(self, absent: set[bytes], now: int) -> list[bytes]:
        """Returns the absent requests for which something may be due, and a few calm ones.

        Thousands of requests may be paused, or open and idle. A calm request that was in a lane
        since then is not calm any more.
        """
        self._calm = {name: due for name, due in self._calm.items() if name in absent}
        calm = [name for name, due in self._calm.items() if due > now]
        for name in calm[: settings.AUDIT_SAMPLE]:  # those that are calm for longest come first
            del self._calm[name]
        return [name for name in absent if self._calm.get(name, 0) <= now]

    def _note_calm(self, name: str, reply: Reply, now: int) -> None:
        """Notes a request for which nothing is due for long: no lease, no token on its way."""
        if not reply.is_ok or reply.late_permits:
            return
        look_ms = reply.look_ms
        if look_ms == 0 or look_ms > _CALM_MS:
            self._calm[name.encode()] = now + look_ms if look_ms else math.inf

    def _look_at(self, name: str, *, is_gone: bool) -> Operation[None]:
        """Checks a request that needs a reap, whose end is not logged, or that is gone.

        An intent whose request does not exist yet has its own time, see look_after.
        """
        active = keys.active(self._queue)
        score, (seconds, _) = yield Batch([Command(b"ZSCORE", active, name), Command(b"TIME")])
        if score is not None and not (is_gone and float(score) % 1 == 0):
            yield from look_at(self._queue, name, score.decode(), int(seconds) * 1000)

    def _unfinished(self) -> Operation[set[bytes]]:
        """Returns the unfinished requests; if there are very many, a part of them in each audit.

        An entry that moves while the pages are read may be missing: the next audit finds it.
        """
        active = keys.active(self._queue)
        parts = 1 + (yield Command(b"ZCARD", active)) // settings.AUDIT_PART
        self._count += 1
        turn = self._count % parts
        found: set[bytes] = set()
        for page in (yield from _pages(b"ZRANGE", active)):
            found.update(page if parts == 1 else (n for n in page if crc32(n) % parts == turn))
        return found

    def _waiting(self) -> Operation[tuple[list[bytes], list[FairlaneError]]]:
        """Returns the requests with a token in a lane, by urgency, then those in `delayed`.

        Also returns the errors of reading, because a shard may be unreachable. `delayed` is read
        before the lanes, because tokens move only in that direction.
        """
        spread = yield from read_shards(self._queue)
        later, found = list[bytes](), list[bytes]()
        lanes: list[tuple[int, bytes]] = []
        unread: list[FairlaneError] = []
        for shard in spread.served:
            try:
                for page in (yield from _pages(b"ZRANGE", keys.delayed(self._queue, shard))):
                    later += (member.partition(b"|")[2].partition(b"#")[0] for member in page)
                lanes += yield from self._used_lanes(shard)
            except FairlaneError as error:
                unread.append(error)
        there = Counter[bytes]()
        for _, lane in sorted(lanes):
            try:
                for page in (yield from _pages(b"LRANGE", lane)):
                    found += (token.partition(b"#")[0] for token in page)
                    there[lane] += page.count(turns.PLACEHOLDER)
            except FairlaneError as error:
                unread.append(error)
        for shard in spread.served:
            try:
                found += yield from self._with_turns(shard, there)
            except FairlaneError as error:
                unread.append(error)
        return [*dict.fromkeys(found + later)], unread

    def _with_turns(self, shard: int, there: Counter[bytes]) -> Operation[list[bytes]]:
        """Returns the requests of tokens that name a tenant; adds placeholders that were lost.

        `there`: the placeholders of each lane. A lane without any gets all. In another lane some
        are popped between the two reads. So it gets only as many as it lacked at the last audit.
        """
        lanes = keys.lanes(self._queue, shard)
        found, needed = list[bytes](), Counter[bytes]()
        for page in (yield from _pages(b"ZRANGE", keys.turns(self._queue, shard)[0])):
            for member in page:
                found.append(turns.token_of(member).partition(b"#")[0])
                needed[lanes[turns.lane_of(member)]] += 1
        calls: list[Call] = []
        for lane in lanes:
            missing, before = max(0, needed[lane] - there[lane]), self._missing.pop(lane, 0)
            if count := min(missing, before) if there[lane] else missing:
                calls += push(lane, [turns.PLACEHOLDER] * count)
            elif missing:
                self._missing[lane] = missing
        if calls:
            yield Batch(calls)
        return found

    def _used_lanes(self, shard: int) -> Operation[list[tuple[int, bytes]]]:
        """Returns the lanes of a shard that may have tokens, each with its priority."""
        lanes = keys.lanes(self._queue, shard)
        lengths = yield Batch([Command(b"LLEN", lane) for lane in lanes], lenient=True)
        return [(i, lane) for i, lane in enumerate(lanes) if lengths[i] != 0]

    def _held_for_long(self) -> Operation[list[bytes]]:
        """Returns the requests of tokens that a worker has held since the last audit or longer."""
        # A worker without heartbeats leaves the registry, but its leases may last longer.
        self._workers.update((yield Command(b"ZRANGE", keys.workers(self._queue), 0, -1)))
        workers, now = list(self._workers), set[bytes]()
        asked = [Command(b"HGETALL", self._taken_key(name)) for name in workers]
        for name, fields in zip(workers, (yield from run_all(asked)), strict=True):
            if not fields:
                self._workers.discard(name)
            for tokens in fields[1::2]:
                now.update(tokens.split())
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


def _pages(command: bytes, key: bytes) -> Operation[list[list[bytes]]]:
    """Reads all of a list, or the members of a sorted set; returns its pages."""
    found: list[list[bytes]] = []
    while not found or len(found[-1]) == _PAGE:
        first = len(found) * _PAGE
        found.append((yield Command(command, key, first, first + _PAGE - 1)))
    return found


def _request_ids(raw: Iterable[bytes]) -> Iterator[str]:
    """Yields the names that are valid ids of requests."""
    for name in raw:
        try:
            yield keys.check_name("request id", name.decode("utf-8", "replace"))
        except InvalidArgument:
            continue
