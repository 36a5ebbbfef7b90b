"""/v1/errors and /v1/requests/{id}/errors, /dead: how sub-requests failed, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import msgspec

from fairlane.model import DeadChoice as Choice
from fairlane.operations.completion import is_place
from fairlane.operations.dead_letters import read_dead, request_errors, requeue_dead
from fairlane.records import QueueErrors, RequestErrors
from fairlane.web.answers import Refusal, answer
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

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


_MOST_OF_ONE = 10_000  # dead sub-requests that are read: pages ask again and again


class DeadPage(msgspec.Struct):
    """Dead sub-requests with their bodies, first to die first; at the end `after` is null."""

    dead: list[DeadLine]
    after: str | None


class DeadSelection(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead sub-requests: those of these indexes or fingerprints, or `everything`."""

    indexes: Annotated[list[int], msgspec.Meta(max_length=MOST_ITEMS)] | None = None
    fingerprints: Few | None = None
    everything: bool = False


class Requeued(msgspec.Struct):
    """How many dead sub-requests run again, in their own request."""

    requeued: int


class Dropped(msgspec.Struct):
    """How many dead sub-requests were deleted with their bodies."""

    dropped: int


async def errors_of_request(site: Site, call: Call) -> Response:
    """Groups how sub-requests of a request failed: 10,000 dead, and the last failed attempt."""
    request, _ = await own_request(site, call)
    found = await site.queue.driver.run(request_errors(request.id, _MOST_OF_ONE))
    return answer(replace(found, request=shown(found.request, shows_by=False)))


async def errors_of_queue(site: Site, _: Call) -> Response:
    """Groups the dead sub-requests of all requests of the queue: up to 100,000.

    The answer may be 15 s old; a requeue, drop or deletion by this server is always in it.
    """
    return answer(await site.failures.get())


async def dead(site: Site, call: Call) -> Response:
    """Returns dead sub-requests with their bodies, first to die first: about 4 MiB a page."""
    after = query(call, After).after
    if after and not is_place(after):
        raise Refusal(422, f"after {after[:60]!r} is no place: give the one that the last page had")
    request, _ = await own_request(site, call)
    page = await site.queue.driver.run(read_dead(request.id, after))
    return answer(DeadPage([dead_of(one) for one in page], page[-1].dead_id if page else None))


async def requeue(site: Site, call: Call) -> Response:
    """Lets dead sub-requests run again, with all attempts.

    If the request has ended, it is opened again, and will end once more.
    """
    choice = await _choice(call)
    request, _ = await own_request(site, call)
    by = caller_of(call).id
    count = await site.queue.driver.run(requeue_dead(request.id, choice, by))
    site.failures.forget()
    return answer(Requeued(count))


async def drop(site: Site, call: Call) -> Response:
    """Deletes dead sub-requests with their bodies. Counts and results stay."""
    choice = await _choice(call)
    request, _ = await own_request(site, call)
    count = await request.drop_dead(fingerprint=choice.fingerprints, indexes=choice.indexes)
    site.failures.forget()
    return answer(Dropped(count))


async def _choice(call: Call) -> Choice:
    given = await document(call, DeadSelection, MOST)
    ways = (given.indexes is not None) + (given.fingerprints is not None) + given.everything
    if ways != 1:
        what = "two ways of choice" if ways else "no dead sub-request is chosen"
        raise Refusal(422, f"{what}: give indexes, or fingerprints, or everything")
    some = f"fingerprints={','.join(given.fingerprints or ())}" if given.fingerprints else ""
    named = "indexes" if given.indexes is not None else some or "everything"
    await trail_of(call).note(given=named, ids=" ".join(map(str, given.indexes or ())))
    return Choice.of(given.fingerprints, given.indexes)


_ONE, _GROUP = "/v1/requests/{id}", "Failures"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/errors", handle=errors_of_queue, group=_GROUP, scopes=("view",),
        summary="Group the failures of the queue", gives=QueueErrors,
    ),
    Endpoint(
        method="GET", path=f"{_ONE}/errors", handle=errors_of_request, group=_GROUP,
        scopes=("view",), summary="Group the failures of a request", gives=RequestErrors,
        refuses=(404,),
    ),
    Endpoint(
        method="GET", path=f"{_ONE}/dead", handle=dead, group=_GROUP, scopes=("view",),
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
