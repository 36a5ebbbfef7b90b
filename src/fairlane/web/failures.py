"""/v1/errors and /v1/requests/{id}/errors, /dead: how sub-requests failed, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from fairlane.model import DeadChoice as Choice
from fairlane.operations.completion import is_place
from fairlane.operations.dead_letters import (
    drop_dead,
    queue_errors,
    read_dead,
    request_errors,
    requeue_dead,
)
from fairlane.records import QueueErrors, RequestErrors
from fairlane.web.answers import Refusal, answer
from fairlane.web.counts import LOOK, hides_data
from fairlane.web.route import (
    MOST,
    MOST_ITEMS,
    After,
    Endpoint,
    caller_of,
    document,
    own_request,
    query,
)
from fairlane.web.schemas import DeadLine, Few, dead_of, shown
from fairlane.web.trail import trail_of
from fairlane.web.waiting import Recent

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.aio.queue import Queue
    from fairlane.web.app import Site


_MOST_OF_ONE = 10_000  # dead sub-requests that are read: pages ask again and again
_MOST_KEPT = 16  # choices whose failures are kept
_REST_S = 15.0  # a read takes up to 100,000 dead sub-requests


class DeadPage(msgspec.Struct):
    """Dead sub-requests with their bodies, first to die first; at the end `after` is null."""

    dead: list[DeadLine]
    after: str | None


class DeadQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead sub-requests; fingerprints and tasks may be repeated, and mean any of them.

    `error` is a part of the text of the error. They died at `since` or later and before `until`:
    moments such as 2026-12-24T18:00+01:00, or how long ago, such as 10m.
    """

    fingerprint: Few = []
    task: Few = []
    error: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    until: str | UnsetType = UNSET

    def choice(self) -> Choice:
        """Returns the choice. Raises InvalidArgument.

        Raises Refusal for a filter by what the caller may not see, because the counts show it.
        """
        if hides_data() and (self.error is not UNSET or self.fingerprint):
            raise Refusal(403, "a filter by errors needs a token with the scope view")
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return Choice.of(**{name: one for name, one in given.items() if one not in (UNSET, [])})


class DeadSelection(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead sub-requests: those of these indexes, those of the filters, or `everything`.

    The filters are those of a list of failures.
    """

    indexes: Annotated[list[int], msgspec.Meta(max_length=MOST_ITEMS)] | None = None
    fingerprints: Few | None = None
    tasks: Few | None = None
    error: str | None = None
    since: str | None = None
    until: str | None = None
    everything: bool = False

    def filters(self) -> dict[str, Any]:
        """Returns the filters that are given, as the library takes them."""
        given = {
            "fingerprint": self.fingerprints,
            "task": self.tasks,
            "error": self.error,
            "since": self.since,
            "until": self.until,
        }
        return {name: one for name, one in given.items() if one is not None}


class Requeued(msgspec.Struct):
    """How many dead sub-requests run again, in their own request."""

    requeued: int


class Dropped(msgspec.Struct):
    """How many dead sub-requests were deleted with their bodies."""

    dropped: int


async def errors_of_request(site: Site, call: Call) -> Response:
    """Groups how sub-requests of a request failed: 10,000 dead, and the last failed attempt."""
    choice = query(call, DeadQuery).choice()
    request, _ = await own_request(site, call)
    found = await site.queue.driver.run(request_errors(request.id, _MOST_OF_ONE, choice))
    return answer(replace(found, request=shown(found.request, shows_by=False)))


async def errors_of_queue(site: Site, call: Call) -> Response:
    """Groups the dead sub-requests of all requests of the queue: up to 100,000.

    The answer may be 15 s old; a requeue, drop or deletion by this server is always in it.
    """
    wanted = query(call, DeadQuery)
    wanted.choice()  # a wrong one is refused
    return answer(await site.failures.get(wanted))


class SharedFailures:
    """The failures of a queue by what was asked for, each read once for all that ask it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._kept: dict[bytes, Recent[QueueErrors]] = {}

    async def get(self, wanted: DeadQuery) -> QueueErrors:
        """Returns the chosen failures, as the queue had them at most 15 s ago."""
        name = msgspec.json.encode(wanted)
        recent = self._kept.pop(name, None)
        if recent is None:
            recent = Recent(lambda: self._read(wanted), rest_s=_REST_S)
        self._kept[name] = recent  # the last one now
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return await recent.get()

    def forget(self) -> None:
        """Lets the next caller read anew, because dead sub-requests were requeued or dropped."""
        for one in self._kept.values():
            one.forget()

    async def _read(self, wanted: DeadQuery) -> QueueErrors:
        return await self._queue.driver.run(queue_errors(self._queue.name, choice=wanted.choice()))


async def dead(site: Site, call: Call) -> Response:
    """Returns dead sub-requests with their bodies, first to die first: about 4 MiB a page."""
    after = query(call, After).after
    if after and not is_place(after):
        raise Refusal(422, f"after {after[:60]!r} is no place: give the one that the last page had")
    request, progress = await own_request(site, call)
    page = await site.queue.driver.run(read_dead(request.id, after))
    rows = [dead_of(one, progress.redact) for one in page]
    return answer(DeadPage(rows, page[-1].dead_id if page else None))


async def requeue(site: Site, call: Call) -> Response:
    """Lets dead sub-requests run again, with all attempts.

    If the request has ended, it is opened again, and will end once more.
    """
    choice = await _choice(call)
    request, _ = await own_request(site, call)
    by = caller_of(call).id
    count = await site.queue.driver.run(requeue_dead(request.id, choice, by))
    site.failures.forget()
    site.tasks.forget()
    return answer(Requeued(count))


async def drop(site: Site, call: Call) -> Response:
    """Deletes dead sub-requests with their bodies. Counts and results stay."""
    choice = await _choice(call)
    request, _ = await own_request(site, call)
    count = await site.queue.driver.run(drop_dead(request.id, choice))
    site.failures.forget()
    site.tasks.forget()
    return answer(Dropped(count))


async def _choice(call: Call) -> Choice:
    given = await document(call, DeadSelection, MOST)
    filters = given.filters()
    ways = (given.indexes is not None) + bool(filters) + given.everything
    if ways != 1:
        what = "two ways of choice" if ways else "no dead sub-request is chosen"
        raise Refusal(
            422, f"{what}: give indexes, or filters such as fingerprints and tasks, or everything"
        )
    some = " ".join(
        f"{name}={one if isinstance(one, str) else ','.join(one)}" for name, one in filters.items()
    )
    named = "indexes" if given.indexes is not None else some or "everything"
    await trail_of(call).note(given=named, ids=" ".join(map(str, given.indexes or ())))
    return Choice.of(**filters) if given.indexes is None else Choice.of(indexes=given.indexes)


_ONE, _GROUP = "/v1/requests/{id}", "Failures"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/errors", handle=errors_of_queue, group=_GROUP, scopes=LOOK,
        summary="Group the failures of the queue", query=DeadQuery, gives=QueueErrors,
        refuses=(422,),
    ),
    Endpoint(
        method="GET", path=f"{_ONE}/errors", handle=errors_of_request, group=_GROUP,
        scopes=LOOK, summary="Group the failures of a request", query=DeadQuery,
        gives=RequestErrors, refuses=(404, 422),
    ),
    Endpoint(
        method="GET", path=f"{_ONE}/dead", handle=dead, group=_GROUP, scopes=LOOK,
        summary="Read the dead sub-requests", query=After, gives=DeadPage, refuses=(404, 422),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/dead/requeue", handle=requeue, group=_GROUP,
        scopes=("operate",), summary="Let dead sub-requests run again", takes=DeadSelection,
        gives=Requeued, refuses=(404, 409, 422), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/dead/drop", handle=drop, group=_GROUP, scopes=("operate",),
        summary="Delete dead sub-requests", takes=DeadSelection, gives=Dropped,
        refuses=(404, 409, 422), changes=True,
    ),
)  # fmt: skip
