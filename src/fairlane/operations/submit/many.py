"""Many small requests in few round trips: groups of new requests, each group by one create."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

from fairlane import settings
from fairlane.common.chunking import split, split_async
from fairlane.errors import (
    FairlaneError,
    InvalidArgument,
    RedisUnreachable,
    type_of,
)
from fairlane.operations.create.admission import Admission, check_max_wait
from fairlane.operations.create.digest import Digest
from fairlane.operations.create.group import GROUP, create
from fairlane.operations.create.new_request import NewRequest, RequestKept
from fairlane.operations.submit.stream import complete, submit, submit_chunk
from fairlane.options import policy_of
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fairlane.common.chunking import Body
    from fairlane.operations.create.digest import Chunk
    from fairlane.options import Policy, SharedOptions
    from fairlane.protocol.steps import Operation

B = TypeVar("B")
Rest = TypeVar("Rest")


class Collected(NamedTuple, Generic[Rest]):
    """The next request: its only chunk, or [] and all its chunks in `rest`."""

    id: str
    policy: Policy
    chunk: Chunk
    rest: Rest | None


class Many:
    """Collects small requests of one queue into groups; every operation it returns must be run.

    The requests share a policy, unless `add` gets another. `submitted` are the ids of the requests
    in Redis, in their order. If Redis stops answering, at least these were written. If one request
    is refused, the rest of its group is submitted, and then the error is raised. When Redis or the
    queue is full, nothing more is begun.
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
        self._sent = 0
        self._limits = None if limits is None else iter(limits)
        self._digest = Digest(policy)
        self._group: list[NewRequest] = []
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
        *,
        trace: str = "",
        **options: Unpack[SharedOptions],
    ) -> Many:
        """Returns a collector for these options; `limit` is one for all requests, or for each."""
        if isinstance(limit, Iterable):
            return cls(policy_of(queue, trace=trace, **options), max_wait_s, ids, limit)
        return cls(policy_of(queue, trace=trace, limit=limit, **options), max_wait_s, ids)

    # ------------------------------------------------------------------ requests of the caller

    def collect(self, bodies: Iterable[Body]) -> Collected[Iterator[Chunk]]:
        """Returns the next request. Raises InvalidArgument, whose text names the request."""
        request_id = self._name()
        try:
            return Collected(request_id, self._policy(), *split(bodies))
        except InvalidArgument as error:
            raise self._wrong(error) from None

    async def collect_async(
        self, bodies: Iterable[Body] | AsyncIterable[Body]
    ) -> Collected[AsyncIterator[Chunk]]:
        """Returns the next request, whose bodies may come asynchronously."""
        request_id = self._name()
        try:
            return Collected(request_id, self._policy(), *await split_async(bodies))
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

    @property
    def sent(self) -> int:
        """Returns how many sub-requests all requests together have that are in Redis."""
        return self._sent

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

    # ------------------------------------------------------------------ groups for Redis

    def step(self, taken: Collected[Any]) -> Operation[None] | None:
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
        policy = policy or self.policy
        digest = self._digest.copy() if policy is self.policy else Digest(policy)
        new = NewRequest(request_id, policy, digest, [])
        new.begin(chunk)
        self._group.append(new)
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

    def _submit(self, group: list[NewRequest]) -> Operation[None]:
        if self.policy.durable:
            for new in group:
                new.room = Admission(new.id, self.policy.queue, self.max_wait_s)
                self._count_up(new.id, (yield from submit_chunk(new)))
            return
        errors: list[FairlaneError] = []
        try:
            yield from self._create(group, errors)
        finally:  # also when Redis goes away in the middle
            for new in group:
                if new.created is not None and new.is_complete:
                    self._count_up(new.id, new.created.total)
        if errors:
            raise errors[0]

    def _create(self, group: list[NewRequest], errors: list[FairlaneError]) -> Operation[None]:
        """Creates a group, and completes a request that another producer of the id left open."""
        if not group:
            return
        for new, created in zip(group, (yield from create(group, self.max_wait_s)), strict=True):
            if isinstance(created, RequestKept):
                self._count_up(new.id, created.total)
            elif isinstance(created, FairlaneError):
                errors.append(created)
            elif not new.is_complete:
                try:
                    yield from complete(new, created)
                except RedisUnreachable:
                    raise
                except FairlaneError as error:
                    errors.append(error)

    def _count_up(self, request_id: str, total: int) -> None:
        self.submitted.append(request_id)
        self._totals.append((request_id, total))
        self._sent += total


def checked_requests(requests: Iterable[B]) -> Iterable[B]:
    """Returns `requests` itself. Raises InvalidArgument for what is no iterable of requests."""
    given: object = requests
    if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
        raise InvalidArgument(
            f"requests is {type_of(given)}: an iterable of requests is expected, "
            "each an iterable of bodies"
        )
    return requests


async def each_request(requests: Iterable[B] | AsyncIterable[B]) -> AsyncIterator[B]:
    """Returns the requests of an async iterable (or an ordinary one). Raises InvalidArgument."""
    if isinstance(requests, AsyncIterable):
        async for bodies in requests:
            yield bodies
        return
    for bodies in checked_requests(requests):
        yield bodies
