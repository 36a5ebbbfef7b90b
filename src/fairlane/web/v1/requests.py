"""/v1/requests: submits, lists, shows and changes requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from fairlane.options import check_deadline, check_limit, check_priority, ms_of
from fairlane.web.endpoint.problem import Refusal
from fairlane.web.endpoint.reading import NDJSON, document, lines, media_of, query
from fairlane.web.endpoint.route import Endpoint, answer
from fairlane.web.v1.own import own_request
from fairlane.web.v1.schemas import (
    Cancel,
    Changes,
    Filters,
    NewRequest,
    Options,
    RequestList,
    RequestState,
    Submitted,
    state_of,
    to_bytes,
)

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.endpoint.site import Site

READ = ("submit", "operate")
_FILTERS = {"state": "states", "priority": "priorities", "tag": "tags", "tenant": "tenants"}


async def submit(site: Site, call: Call) -> Response:
    """Submits a request: bodies in a JSON document, or each line of NDJSON as it is.

    The lines are submitted while they come. If the caller breaks off, the request is withdrawn.
    """
    if media_of(call) == NDJSON:
        options = query(call, Options).given()
        made = await site.queue.submit_request(lines(call), **options)
    else:
        given = await document(call, NewRequest)
        made = await site.queue.submit_request(map(to_bytes, given.bodies), **given.given())
    return answer(Submitted(made.id, made.total or 0), 201)


async def list_requests(site: Site, call: Call) -> Response:
    """Lists requests, newest first, a page at a time."""
    wanted = query(call, Filters)
    given: dict[str, Any] = {
        _FILTERS.get(name, name): value
        for name in Filters.__struct_fields__
        if name not in {"limit", "after"} and (value := getattr(wanted, name)) is not UNSET
    }
    page = await site.queue.list_requests(limit=wanted.limit, after=wanted.after, **given)
    return answer(RequestList([state_of(one) for one in page.requests], page.after))


async def show(site: Site, call: Call) -> Response:
    """Returns the counts of a request now."""
    _, progress = await own_request(site, call)
    return answer(state_of(progress))


async def cancel(site: Site, call: Call) -> Response:
    """Cancels a request: nothing of it starts any more."""
    given = await document(call, Cancel)
    request, _ = await own_request(site, call)
    await request.cancel(given.reason)
    return answer(state_of(await request.progress()))


async def pause(site: Site, call: Call) -> Response:
    """Pauses a request until it is resumed."""
    request, _ = await own_request(site, call)
    await request.pause()
    return answer(state_of(await request.progress()))


async def resume(site: Site, call: Call) -> Response:
    """Resumes a paused request."""
    request, _ = await own_request(site, call)
    await request.resume()
    return answer(state_of(await request.progress()))


async def change(site: Site, call: Call) -> Response:
    """Sets the limit, the priority or the deadline of a request."""
    given = await document(call, Changes)
    limit, priority, deadline_s = given.limit, given.priority, given.deadline_s
    if limit is UNSET and priority is UNSET and deadline_s is UNSET:
        raise Refusal(422, "nothing is to be changed: give limit, priority or deadline_s")
    if isinstance(limit, int):
        check_limit(limit)
    if isinstance(priority, int):
        check_priority(priority)
    if isinstance(deadline_s, float | int):
        check_deadline(ms_of("deadline_s", deadline_s))
    request, _ = await own_request(site, call)
    if isinstance(limit, int):
        await request.set_limit(limit)
    if isinstance(priority, int):
        await request.set_priority(priority)
    if isinstance(deadline_s, float | int):
        await request.set_deadline(deadline_s)
    return answer(state_of(await request.progress()))


_ONE = "/v1/requests/{id}"
_GROUP = "Requests"
ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/requests", handle=submit, group=_GROUP, scopes=("submit",),
        summary="Submit a request", takes=NewRequest, query=Options, gives=Submitted, status=201,
        accepts=(NDJSON,), refuses=(409, 413, 415, 422, 429),
    ),
    Endpoint(
        method="GET", path="/v1/requests", handle=list_requests, group=_GROUP, scopes=("operate",),
        summary="List requests", query=Filters, gives=RequestList, refuses=(422,),
    ),
    Endpoint(
        method="GET", path=_ONE, handle=show, group=_GROUP, scopes=READ,
        summary="Show the counts of a request", gives=RequestState, refuses=(404,),
    ),
    Endpoint(
        method="PATCH", path=_ONE, handle=change, group=_GROUP, scopes=("operate",),
        summary="Set the limit, the priority or the deadline", takes=Changes, gives=RequestState,
        refuses=(404, 409, 422),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/cancel", handle=cancel, group=_GROUP, scopes=("operate",),
        summary="Cancel a request", takes=Cancel, gives=RequestState, refuses=(404, 422),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/pause", handle=pause, group=_GROUP, scopes=("operate",),
        summary="Pause a request", gives=RequestState, refuses=(404, 409),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=("operate",),
        summary="Resume a request", gives=RequestState, refuses=(404, 409),
    ),
)  # fmt: skip
