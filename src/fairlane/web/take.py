"""/v1/take and /v1/taken: for workers in any language, which settle by a receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from fairlane.errors import InvalidArgument
from fairlane.web.answers import Refusal, answer, counted_as
from fairlane.web.route import MOST, Endpoint, document
from fairlane.web.schemas import (
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

    from fairlane.aio.taken import AsyncTaken
    from fairlane.web.app import Site


async def take(site: Site, call: Call) -> Response:
    """Takes sub-requests, the most urgent first; waits for the first one if the caller wishes.

    If the caller has gone meanwhile, they go back.
    """
    given = await document(call, Take)

    async def look(wait_s: float) -> list[AsyncTaken]:
        return await site.queue.take(given.count, visible_for=given.visible_for, wait_s=wait_s)

    async def goes_on() -> bool:
        call.state.check_still()
        return not site.stopping.is_set() and not await call.is_disconnected()

    if given.wait_s:
        site.check_room(counted_as(call))
    with site.long_call(counted_as(call)):
        found = await site.takes.take(look, given.wait_s, goes_on)
    if found and await call.is_disconnected():
        for one in found:
            await one.release()
        found = []
    await site.tally.took(call, "POST /v1/take", len(found))
    return answer(TakenList([taken_of(one) for one in found]))


async def done(site: Site, call: Call) -> Response:
    """Stores the result and counts the sub-request as done."""
    taken = _taken(site, call)
    given = await document(call, Done, MOST)
    await taken.done(None if given.result is None else to_bytes(given.result))
    return Response(status_code=204)


async def dead(site: Site, call: Call) -> Response:
    """Gives a sub-request up."""
    taken = _taken(site, call)
    await taken.dead((await document(call, Dead)).reason)
    return Response(status_code=204)


async def release(site: Site, call: Call) -> Response:
    """Returns a sub-request, uncharged."""
    taken = _taken(site, call)
    await taken.release((await document(call, Release)).delay_s)
    return Response(status_code=204)


async def extend(site: Site, call: Call) -> Response:
    """Holds a sub-request longer."""
    taken = _taken(site, call)
    given = await document(call, Extend)
    return answer(Extended(await taken.extend(given.visible_for)))


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
        summary="Settle it with a result", takes=Done, status=204, refuses=(404, 410),
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
