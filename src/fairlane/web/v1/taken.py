"""/v1/take and /v1/taken: for workers in any language, which settle by a receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from fairlane.common import clock
from fairlane.errors import InvalidArgument
from fairlane.web.endpoint.problem import Refusal
from fairlane.web.endpoint.reading import document
from fairlane.web.endpoint.route import Endpoint, answer
from fairlane.web.v1.schemas import (
    Dead,
    Done,
    Extend,
    Extended,
    Release,
    Take,
    TakenList,
    taken_of,
    to_bytes,
)

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.pull.awaited import AsyncTaken
    from fairlane.web.endpoint.site import Site

_LOOK_S = 1.0  # between two looks whether the caller still waits, or the server stops


async def take(site: Site, call: Call) -> Response:
    """Takes sub-requests, the most urgent first; waits for the first one if the caller wishes.

    If the caller has gone meanwhile, they go back.
    """
    given = await document(call, Take)
    ends = clock.mono_s() + given.wait_s
    while True:
        left_s = max(0.0, ends - clock.mono_s())
        found = await site.queue.take(
            given.count, visible_for=given.visible_for, wait_s=min(_LOOK_S, left_s)
        )
        is_gone = await call.is_disconnected()
        if found or is_gone or left_s <= 0 or site.stopping.is_set():
            break
    if is_gone:
        for one in found:
            await one.release()
        found = []
    await site.tally.took(call, "POST /v1/take", len(found))
    return answer(TakenList([taken_of(one) for one in found]))


async def done(site: Site, call: Call) -> Response:
    """Stores the result and counts the sub-request as done."""
    given = await document(call, Done)
    await _taken(site, call).done(None if given.result is None else to_bytes(given.result))
    return Response(status_code=204)


async def dead(site: Site, call: Call) -> Response:
    """Gives a sub-request up."""
    given = await document(call, Dead)
    await _taken(site, call).dead(given.reason)
    return Response(status_code=204)


async def release(site: Site, call: Call) -> Response:
    """Returns a sub-request, uncharged."""
    given = await document(call, Release)
    await _taken(site, call).release(given.delay_s)
    return Response(status_code=204)


async def extend(site: Site, call: Call) -> Response:
    """Holds a sub-request longer."""
    given = await document(call, Extend)
    return answer(Extended(await _taken(site, call).extend(given.visible_for)))


def _taken(site: Site, call: Call) -> AsyncTaken:
    try:
        return site.queue.taken(call.path_params["receipt"])
    except InvalidArgument as error:
        raise Refusal(404, str(error)) from None


_ONE, _GROUP, _SCOPES = "/v1/taken/{receipt}", "Workers in any language", ("consume",)
ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/take", handle=take, group=_GROUP, scopes=_SCOPES,
        summary="Take sub-requests", takes=Take, gives=TakenList, refuses=(422,),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/done", handle=done, group=_GROUP, scopes=_SCOPES,
        summary="Settle it with a result", takes=Done, status=204, refuses=(404, 410, 413, 422),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/dead", handle=dead, group=_GROUP, scopes=_SCOPES,
        summary="Give it up", takes=Dead, status=204, refuses=(404, 410, 422),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/release", handle=release, group=_GROUP, scopes=_SCOPES,
        summary="Return it", takes=Release, status=204, refuses=(404, 410, 422),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/extend", handle=extend, group=_GROUP, scopes=_SCOPES,
        summary="Hold it longer", takes=Extend, gives=Extended, refuses=(404, 410, 422),
    ),
)  # fmt: skip
