"""The bound on what waits in a queue: sets it, gets room for chunks, and counts settled work.

Without a bound this costs nothing. With one, each chunk gets room in the dispatch slot before it is
written. The counts of settled sub-requests are in the requests' own slots. The leading worker
reports them now and then, and a producer that is refused recounts first.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument, QueueFull, RedisFull, RedisUnreachable
from fairlane.model import ENDED_STATES
from fairlane.operations.tokens import drop_active
from fairlane.options import read_option
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.steps import Arg, Batch, Call, Command, Pause, SingleServer, run_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.option_types import Duration
    from fairlane.protocol.scripts import AdmitReply


MOST = 10**15
_COUNTED = 1000  # requests of one recount
_ROWS = 200  # of one report
_FIELDS = ("queue", "state", "chunks", "total", "done", "dead", "cancelled")


class Bounds(NamedTuple):
    """How many sub-requests may wait in a queue (0 = any number), and how many are counted now."""

    max_waiting: int
    waiting: int


async def read_bounds(queue: str) -> Bounds:
    """Reads the bound of a queue, and what waits by the last count."""
    found = await Command(b"HMGET", keys.conf(queue), b"max_waiting", b"waiting")
    return Bounds(*(int(value or 0) for value in found))


async def set_max_waiting(queue: str, most: int) -> Bounds:
    """Bounds what waits in a queue, 0 = no bound; counts what waits. Raises InvalidArgument."""
    if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MOST:
        raise InvalidArgument(
            f"max_waiting {most!r} is not valid: a whole number of sub-requests is expected, "
            "0 for no bound"
        )
    await scripts.set_max_waiting(keys.bound(queue), most=most)
    await report_backlog(queue)
    return await read_bounds(queue)


async def report_backlog(queue: str) -> None:
    """Reads the progress of a bounded number of requests, soonest audit first."""
    bound = await Command(b"HGET", keys.conf(queue), b"max_waiting")
    if not bound:
        return
    ids = await Command(b"ZRANGE", keys.active(queue), 0, _COUNTED - 1)
    names = [name.decode("utf-8", "replace") for name in ids]
    for start in range(0, len(names), _ROWS):
        part = names[start : start + _ROWS]
        found = await run_each([hmget(name, *_FIELDS) for name in part])
        rows: list[Arg] = []
        for name, reply in zip(part, found, strict=True):
            if isinstance(reply, FairlaneError):
                continue
            home, state, *numbers = parse_fields(_FIELDS, reply)
            if home == queue and state:
                rows += _row(name, state, *numbers)
        await scripts.report_backlog((keys.active(queue), *keys.bound(queue)), rows=rows)


def _row(name: str, state: str, *numbers: str) -> list[Arg]:
    chunks, total, *settled = (int(number or 0) for number in numbers)
    if state in ENDED_STATES:  # a new request of this id has not been admitted yet
        return [name, 0, total, total]
    return [name, chunks, total, sum(settled)]


class Admission:
    """Gets room for one submission: asks for it if there is a bound, and waits if it may."""

    def __init__(self, request_id: str, queue: str, max_wait_s: float) -> None:
        self.request_id, self.queue, self.max_wait_s = request_id, queue, max_wait_s
        self.bound = 0  # by the reply of the last intend
        self._waited = self._pause = 0.0

    async def ask(self, chunk: int, count: int) -> None:
        """Asks for room for one chunk, if there is a bound. Raises QueueFull."""
        if not self.bound:
            return
        reply = await self._admit(chunk, count)
        if reply.is_full and reply.recount:
            await report_backlog(self.queue)
            reply = await self._admit(chunk, count)
        if reply.is_full:
            raise QueueFull(
                f"queue {self.queue} has {reply.waiting:,} waiting sub-requests, {count:,} more "
                f"would pass its bound of {reply.max_waiting:,}: wait until workers have caught "
                f"up, or raise it with fairlane queue set --queue {self.queue} --max-waiting"
            )

    def _admit(self, chunk: int, count: int) -> Call[AdmitReply]:
        return scripts.admit(
            (*keys.bound(self.queue), keys.active(self.queue)),
            id=self.request_id,
            chunk=chunk,
            count=count,
            pause=settings.RECOUNT_MS,
        )

    def found(self) -> None:
        """Notes that there was room: the next refusal may wait as long again."""
        self._waited = self._pause = 0.0

    async def wait(self, error: RedisFull | QueueFull) -> None:
        """Pauses before the next attempt; raises the refusal when no time is left.

        The pauses are counted, not the calls between them: 0.05 s doubling to 1 s.
        """
        left = self.max_wait_s - self._waited
        if left <= 0:
            raise error
        self._pause = min(1.0, self._pause * 2 or 0.05, left)
        self._waited += self._pause
        await Pause(self._pause)


def check_max_wait(max_wait: Duration) -> float:
    """Returns the seconds that a submission may wait for room. Raises InvalidArgument.

    An open request is given up after an hour without a chunk, so the wait must end before that.
    """
    if max_wait == 0.0 and isinstance(max_wait, float):  # as nearly always
        return 0.0
    wait_ms: int = read_option("max_wait", max_wait)
    return wait_ms / 1000


# ------------------------------------------------------------------ place
# Places a request in the shortest of several queues: the one with the fewest unfinished requests.
#
# Where one server has all keys, one script compares and announces the request in that queue, so
# the next one counts it. In a cluster a bounded look compares the queues.


LOOKS = 8  # queues of one look
MOST_QUEUES = 100


class Place(NamedTuple):
    """The queue for a request. `score`: of its intent there, "" = there is none to withdraw."""

    queue: str
    score: str


def check_queues(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of 1 to 100 different queues. Raises InvalidArgument."""
    return keys.check_names("queue", names, MOST_QUEUES)


async def place(names: Sequence[str], request_id: str) -> Place:
    """Returns the queue for a request; a request that exists in one of them stays there.

    Raises InvalidArgument, RedisError.
    """
    keys.check_name("request id", request_id)
    actives = [keys.active(name) for name in names]
    call = scripts.place(
        (keys.request_hash(request_id), *actives),
        id=request_id,
        grace=settings.INTENT_GRACE_MS,
        queues=names,
    )
    reply = await SingleServer(call)
    if reply is not None:
        return Place(names[reply.at], reply.score.decode())
    return Place(await _look(names, request_id), "")


async def _look(names: Sequence[str], request_id: str) -> str:
    """Returns the queue of a request that exists, else the shortest of at most eight.

    A queue whose node does not answer is left out. Raises the first error if all are.
    """
    looked = names if len(names) <= LOOKS else random.sample(names, LOOKS)
    home, *counts = await Batch(
        [
            Command(b"HGET", keys.request_hash(request_id), b"queue"),
            *(Command(b"ZCARD", keys.active(name)) for name in looked),
        ],
        lenient=True,
    )
    if isinstance(home, bytes) and home.decode("utf-8", "replace") in names:
        return home.decode()
    for one in counts:
        if isinstance(one, FairlaneError) and not isinstance(one, RedisUnreachable):
            raise one
    known = {
        name: count for name, count in zip(looked, counts, strict=True) if isinstance(count, int)
    }
    if not known:
        raise counts[0]
    return min(known, key=lambda name: known[name])


async def withdraw(found: Place, request_id: str) -> None:
    """Takes back the intent of a request that could not be submitted, if it is still that one."""
    if found.score:
        await drop_active(found.queue, request_id, found.score)
