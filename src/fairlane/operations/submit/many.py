"""Many small requests in few round trips: one intend, one batch of enqueues, one insert_tokens.

Each of them goes the way of `submit`, in the same order, so a crash anywhere heals in the same way.
What does not go smoothly (the id exists, Redis is full, the queue has a bound) goes the way of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fairlane import settings
from fairlane.common.chunking import split, split_async
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    QueueFull,
    RedisFull,
    RedisUnreachable,
    type_of,
)
from fairlane.model import ENDED_STATES, Policy
from fairlane.operations.lease.tokens import insert_all, retire_all
from fairlane.operations.submit.admission import Admission, check_max_wait
from fairlane.operations.submit.create import is_cancelled, is_there
from fairlane.operations.submit.digest import Digest, digested, terms
from fairlane.operations.submit.intents import announce, restore, withdraw
from fairlane.operations.submit.stream import submit, submit_chunk
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Call, Command, LazySteps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fairlane.common.chunking import Body
    from fairlane.operations.submit.digest import Chunk
    from fairlane.operations.submit.intents import Intent
    from fairlane.protocol.steps import Operation

B = TypeVar("B")
Rest = TypeVar("Rest")
GROUP = 200  # requests of one group


class Group:
    """What is the same for all requests with one policy, computed once."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._begun = Digest(policy).begun()
        script = library().enqueue
        blanks = {"digest": "", "intent": 0, "open_ms": 0, "shards": "", "over": 0}
        call = script((b"",) * len(script.keys), **blanks, **terms(policy))
        self._args = [str(arg).encode() for arg in call.args]
        self._digest_at = script.params.index("digest")
        self._intent_at = script.params.index("intent")
        self._shards_at = script.params.index("shards")
        self._script = script

    def digest(self, chunk: Chunk) -> str:
        """Returns the digest of a request of this one chunk, hex."""
        return digested(self._begun.copy(), chunk).hexdigest()

    def call(self, small: Small, intent: Intent) -> Call:
        """Returns the call of enqueue for a request of this one chunk, sealed."""
        args: list[Any] = self._args.copy()
        args[self._digest_at] = self.digest(small.chunk)
        args[self._intent_at] = intent.score
        args[self._shards_at] = intent.shards
        args += small.chunk
        return Call(self._script, keys.request_keys(small.id), args)


class Small(NamedTuple):
    """A request that fits into one call."""

    id: str
    chunk: Chunk
    plan: Group


class Taken(NamedTuple, Generic[Rest]):
    """The next request: its only chunk, or [] and all its chunks in `rest`."""

    id: str
    policy: Policy
    chunk: Chunk
    rest: Rest | None


Announced = tuple[Small, "Intent | None"]  # None: nothing of it was written


class Many:
    """Collects small requests of one queue into groups; every operation it returns is to be run.

    The requests share a policy but for that of `add`. `submitted` are the ids of those that
    are in Redis, in their order; when it does not answer any more, at least these are. A refusal of
    one request does not keep the rest of its group from its end, and is raised behind it; when
    Redis or the queue is full, nothing more is begun.
    """

    def __init__(
        self,
        policy: Policy,
        max_wait_s: float = 0.0,
        ids: Iterable[str] | None = None,
        limits: Iterable[int] | None = None,
    ) -> None:
        self.policy, self.max_wait_s = policy, check_max_wait(max_wait_s)
        self.submitted: list[str] = []
        self._totals: list[tuple[str, int]] = []  # of those submitted since take_submitted
        self._limits = None if limits is None else iter(limits)
        self._plans: dict[Policy, Group] = {}
        self._plan = self._plan_of(policy)
        self._group: list[Small] = []
        self._size = 0
        self._seen: set[str] = set()
        self._is_given = ids is not None
        self._names = iter(keys.new_id, None) if ids is None else self._given(ids)
        self._count = 0

    @classmethod
    def of(
        cls,
        queue: str,
        limit: int | Iterable[int],
        max_wait_s: float,
        ids: Iterable[str] | None,
        **options: Any,
    ) -> Many:
        """Returns the one for these options; `limit` is that of all, or has one for each."""
        if isinstance(limit, Iterable):
            return cls(Policy(queue=queue, **options), max_wait_s, ids, limit)
        return cls(Policy(queue=queue, limit=limit, **options), max_wait_s, ids)

    # ------------------------------------------------------------------ what comes in

    def take(self, bodies: Iterable[Body]) -> Taken[Iterator[Chunk]]:
        """Returns the next request. Raises InvalidArgument, which says which request it is."""
        request_id = self._name()
        try:
            return Taken(request_id, self._policy(), *split(bodies))
        except InvalidArgument as error:
            raise self._wrong(error) from None

    async def take_async(
        self, bodies: Iterable[Body] | AsyncIterable[Body]
    ) -> Taken[AsyncIterator[Chunk]]:
        """Returns the next request, whose bodies may come asynchronously."""
        request_id = self._name()
        try:
            return Taken(request_id, self._policy(), *await split_async(bodies))
        except InvalidArgument as error:
            raise self._wrong(error) from None

    def check_ends(self) -> None:
        """Raises InvalidArgument if an id or a limit is left over behind the last request."""
        if self._is_given and next(self._names, None) is not None:
            raise InvalidArgument(f"there are more ids than requests: {self._count:,} requests")
        if self._limits is not None and next(self._limits, None) is not None:
            raise InvalidArgument(f"there are more limits than requests: {self._count:,} requests")

    def _policy(self) -> Policy:
        if self._limits is None:
            return self.policy
        limit = next(self._limits, None)
        if limit is None:
            raise InvalidArgument("there is no limit for it: one limit for each is expected")
        return replace(self.policy, limit=limit)

    def _name(self) -> str:
        self._count += 1
        request_id = next(self._names, None)
        if request_id is None:
            raise InvalidArgument(f"there are more requests than ids: {self._count - 1:,} ids")
        return request_id

    def _given(self, ids: Iterable[str]) -> Iterator[str]:
        if isinstance(ids, (str, bytes)):
            raise InvalidArgument(f"ids {ids[:60]!r} is not valid: one id for each request")
        for request_id in ids:
            keys.check_name("request id", request_id)
            if request_id in self._seen:
                raise InvalidArgument(
                    f"request id {request_id} is given twice: each is one request"
                )
            self._seen.add(request_id)
            yield request_id

    def _wrong(self, error: InvalidArgument) -> InvalidArgument:
        return InvalidArgument(f"request {self._count - 1} of the call: {error}")

    def _plan_of(self, policy: Policy) -> Group:
        plan = self._plans.get(policy)
        if plan is None:
            plan = self._plans[policy] = Group(policy)
        return plan

    @contextlib.contextmanager
    def names_submitted(self) -> Iterator[None]:
        """Adds to an error that is raised inside which requests were submitted before it."""
        try:
            yield
        except FairlaneError as error:
            error.submitted = tuple(self.submitted)
            raise
        except Exception as error:
            error.add_note(f"{len(self.submitted):,} requests were submitted before")
            raise

    # ------------------------------------------------------------------ what goes out

    def step(self, taken: Taken[Any]) -> Operation[None] | None:
        """Takes a request; returns what is to be run now with `taken.rest`, or None."""
        if taken.rest is None:
            return self.add(taken.id, taken.chunk, taken.policy)
        return self.large(taken.id, taken.policy)

    def take_submitted(self) -> list[tuple[str, int]]:
        """Returns id and number of sub-requests of those submitted since the last call."""
        totals, self._totals = self._totals, []
        return totals

    def add(
        self, request_id: str, chunk: Chunk, policy: Policy | None = None
    ) -> Operation[None] | None:
        """Takes a small request; returns what submits the group before it when that is full.

        `policy` may differ from the others' in its limit and priority.
        """
        size, full = sum(map(len, chunk)), None
        is_room = self._size + size <= settings.CHUNK_BYTES and len(self._group) < GROUP
        if self._group and not is_room:
            full = self.rest()
        plan = self._plan if policy is None else self._plan_of(policy)
        self._group.append(Small(request_id, chunk, plan))
        self._size += size
        return full

    def rest(self) -> Operation[None]:
        """Submits what was added and not submitted yet."""
        group, self._group, self._size = self._group, [], 0
        return self._submit(group)

    def large(self, request_id: str, policy: Policy | None = None) -> Operation[None]:
        """Submits what was added, and then the caller's chunks as one request."""
        yield from self.rest()
        total = yield from submit(request_id, policy or self.policy, self.max_wait_s)
        self._count_up(request_id, total)

    def _submit(self, group: list[Small]) -> Operation[None]:
        if not group:
            return
        left, bound = yield from self._begin(group)
        missing = {small.id for small, _ in left}
        try:
            failed = yield from self._one_by_one(left, bound, missing)
        finally:  # also when Redis goes away in the middle
            for small in group:
                if small.id not in missing:
                    self._count_up(small.id, len(small.chunk))
        for error in failed.values():
            raise error

    def _count_up(self, request_id: str, total: int) -> None:
        self.submitted.append(request_id)
        self._totals.append((request_id, total))

    def _begin(self, group: list[Small]) -> Operation[tuple[list[Announced], int]]:
        """Submits what goes smoothly; returns what is left, and the queue's bound."""
        alone: list[Announced] = [(small, None) for small in group]
        if self.policy.durable:
            return alone, 0
        try:
            bound, intents = yield from announce(self.policy, [small.id for small in group])
        except RedisFull:
            if not self.max_wait_s:
                raise
            return alone, 0
        announced = list(zip(group, intents, strict=True))
        return [*announced] if bound else [*(yield from self._together(announced))], bound

    def _together(self, group: list[tuple[Small, Intent]]) -> Operation[list[tuple[Small, Intent]]]:
        """One batch, and what comes of it; returns those that need another look."""
        calls = (small.plan.call(small, intent) for small, intent in group)
        replies = yield Batch(LazySteps(len(group), calls), lenient=True)
        queue, more = self.policy.queue, list[Command | Call]()
        minted, ended, left = [], [], []
        for (small, intent), reply in zip(group, replies, strict=True):
            word = b"" if isinstance(reply, FairlaneError) else reply[0]
            if word == b"ok":
                minted.append((small.id, reply[1]))
            elif word == b"ended":
                ended.append((small.id, reply[1]))
            elif word == b"exists" and _is_whole(reply) and not is_cancelled(reply[4]):
                minted.append((small.id, reply[5]))
                is_over = reply[4][0].decode() in ENDED_STATES
                if is_over:
                    ended.append((small.id, reply[4]))
                step = restore(queue, small.id, intent, is_over=is_over)
                more += [] if step is None else [step]
            else:
                left.append((small, intent))
        more += [*insert_all(queue, minted), *retire_all(queue, ended)]
        if more:
            yield Batch(more)
        return left

    def _one_by_one(
        self, left: list[Announced], bound: int, missing: set[str]
    ) -> Operation[dict[str, FairlaneError]]:
        """Each on the way of one; those that were not submitted, each with the reason.

        Takes those that were out of `missing`.
        """
        failed: dict[str, FairlaneError] = {}
        stop: FairlaneError | None = None
        for small, intent in left:
            if stop is not None and not (yield from self._is_there(small, intent)):
                failed[small.id] = stop
                continue
            room = Admission(small.id, self.policy.queue, 0.0 if stop else self.max_wait_s)
            room.bound = bound
            try:
                yield from submit_chunk(small.id, small.plan.policy, small.chunk, room, intent)
            except RedisUnreachable:
                raise
            except FairlaneError as error:  # also a key of this one that cannot be read
                failed[small.id] = error
                # What stands in `active` already needs an end, whatever became of this one.
                if intent is None or isinstance(error, (RedisFull, QueueFull)):
                    stop = stop or error
            else:
                missing.discard(small.id)
        return failed

    def _is_there(self, small: Small, intent: Intent | None) -> Operation[bool]:
        """Returns True if the reply of its enqueue was lost; else withdraws its intent."""
        if intent is None:
            return False
        if (yield from is_there(small.id, small.plan.digest(small.chunk))):
            return True
        yield withdraw(self.policy.queue, small.id, intent)
        return False


def _is_whole(reply: list[Any]) -> bool:
    """Returns True if the reply to a repeat says: the request has this one chunk and is sealed."""
    _, chunks, _, is_open, *_ = reply
    return chunks == 1 and not is_open


def checked_requests(requests: Iterable[B]) -> Iterable[B]:
    """`requests` itself. Raises InvalidArgument for what is no iterable of requests."""
    given: object = requests
    if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
        raise InvalidArgument(
            f"requests is {type_of(given)}: an iterable of requests is expected, "
            "each an iterable of bodies"
        )
    return requests


async def each_request(requests: Iterable[B] | AsyncIterable[B]) -> AsyncIterator[B]:
    """The requests of an async iterable (or an ordinary one). Raises InvalidArgument."""
    if isinstance(requests, AsyncIterable):
        async for bodies in requests:
            yield bodies
        return
    for bodies in checked_requests(requests):
        yield bodies
