"""/v1/requests: submits, lists, shows and changes requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET
from starlette.responses import Response

from fairlane.operations.change import Change, set_one
from fairlane.web.endpoint.reading import (
    MOST,
    NDJSON,
    UPLOAD,
    document,
    lines,
    media_of,
    parts,
    query,
)
from fairlane.web.endpoint.route import Endpoint, answer, caller_of, counted_as
from fairlane.web.endpoint.submission import submit_for
from fairlane.web.endpoint.trail import trail_of
from fairlane.web.endpoint.upload import file_parts
from fairlane.web.v1.own import own_request
from fairlane.web.v1.schemas import (
    Cancel,
    Changes,
    Delete,
    Filters,
    NewRequest,
    Options,
    RequestDetail,
    RequestList,
    RequestState,
    Submitted,
    detail_of,
    state_of,
    to_bytes,
)

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.web.endpoint.site import Site

READ = ("submit", "view")


async def submit(site: Site, call: Call) -> Response:
    """Submits a request: bodies in a JSON document, or each line of NDJSON or of a form's file.

    The lines are submitted while they come. If the caller breaks off, the request is withdrawn.
    """
    if media_of(call) in {NDJSON, UPLOAD}:
        options = query(call, Options).given()
        source = lines(file_parts(call) if media_of(call) == UPLOAD else parts(call))
        site.check_room(counted_as(call))
        with site.long_call(counted_as(call)):
            made = await submit_for(site, call, source, **options)
    else:
        given = await document(call, NewRequest, MOST, others=(NDJSON, UPLOAD))
        made = await submit_for(site, call, map(to_bytes, given.bodies), **given.given())
    return answer(Submitted(*made), 201)


async def list_requests(site: Site, call: Call) -> Response:
    """Lists requests, the most urgent first, then the newest endings, a page at a time."""
    wanted = query(call, Filters)
    page = await site.queue.list_requests(
        limit=wanted.limit, after=wanted.after, sort=wanted.sort, **wanted.given()
    )
    rows = [state_of(one) for one in page.requests]
    return answer(RequestList(rows, page.after, page.now_ms, page.is_sorted))


async def show(site: Site, call: Call) -> Response:
    """Returns the counts and the settings of a request now."""
    _, progress = await own_request(site, call)
    return answer(detail_of(progress, shows_by="operate" in caller_of(call).scopes))


async def cancel(site: Site, call: Call) -> Response:
    """Cancels a request: nothing of it starts any more."""
    given = await document(call, Cancel)
    await trail_of(call).note(given=given.reason)
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
    """Sets the limit, the priority, the deadline, the rate, the weight or the share: all or none.

    A request that has ended, or whose end is near, refuses.
    """
    given = await document(call, Changes)
    wanted = {
        name: value
        for name in Changes.__struct_fields__
        if (value := getattr(given, name)) is not UNSET
    }
    await trail_of(call).note(given=" ".join(f"{name}={value}" for name, value in wanted.items()))
    changing = Change.set(**wanted)
    request, _ = await own_request(site, call)
    await site.queue.driver.run(set_one(request.id, changing))
    return answer(state_of(await request.progress()))


async def delete(site: Site, call: Call) -> Response:
    """Deletes a request that has ended, with its results; ?cancel=true cancels it first."""
    wanted = Change.delete(cancel=query(call, Delete).cancel)
    await trail_of(call).note(given="cancel=true" if wanted.cancels else "")
    request, _ = await own_request(site, call)
    report = await site.queue.change(await site.queue.select(wanted, [request.id]))
    site.failures.forget()
    for error in report.failed.values():
        raise error
    return Response(status_code=204)


_ONE = "/v1/requests/{id}"
_GROUP = "Requests"
ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/requests", handle=submit, group=_GROUP, scopes=("submit",),
        summary="Submit a request", takes=NewRequest, query=Options, gives=Submitted, status=201,
        accepts=(NDJSON, UPLOAD), refuses=(404, 409, 413, 415, 422, 429),
    ),
    Endpoint(
        method="GET", path="/v1/requests", handle=list_requests, group=_GROUP, scopes=("view",),
        summary="List requests", query=Filters, gives=RequestList, refuses=(422,),
    ),
    Endpoint(
        method="GET", path=_ONE, handle=show, group=_GROUP, scopes=READ,
        summary="Show a request", gives=RequestDetail, refuses=(404,),
    ),
    Endpoint(
        method="PATCH", path=_ONE, handle=change, group=_GROUP, scopes=("operate",),
        summary="Change the settings of a request", takes=Changes,
        gives=RequestState, refuses=(404, 409, 413, 415, 422), changes=True,
    ),
    Endpoint(
        method="DELETE", path=_ONE, handle=delete, group=_GROUP, scopes=("operate",),
        summary="Delete a request", query=Delete, status=204, refuses=(404, 409, 422),
        changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/cancel", handle=cancel, group=_GROUP, scopes=("operate",),
        summary="Cancel a request", takes=Cancel, gives=RequestState, refuses=(404, 413, 415, 422),
        changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/pause", handle=pause, group=_GROUP, scopes=("operate",),
        summary="Pause a request", gives=RequestState, refuses=(404, 409), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=("operate",),
        summary="Resume a request", gives=RequestState, refuses=(404, 409), changes=True,
    ),
)  # fmt: skip
