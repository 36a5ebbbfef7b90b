"""/v1/requests/{id}/live: a request while people watch it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from fairlane.web.endpoint.route import Endpoint, caller_of
from fairlane.web.endpoint.stream import EVENTS, event_stream
from fairlane.web.operate.why import Why, why_of
from fairlane.web.v1.own import own_request
from fairlane.web.v1.schemas import RequestDetail, detail_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.aio.request import Request
    from fairlane.model import Progress
    from fairlane.web.endpoint.site import Site, Watched

LOOK_S = 1.0  # between two looks at a request that runs
ENDED_S = 15.0  # the same of one that has ended: only its dead sub-requests may change


class RequestLive(msgspec.Struct):
    """A request that has changed, and what holds it up; `why` is null once it has ended."""

    request: RequestDetail
    why: Why | None
    now_ms: int


async def follow(site: Site, call: Call) -> Response:
    """Sends a request now and whenever it has changed, without an end.

    What holds it up is read again when its settings change, and every 5 s until it ends. Any number
    of viewers costs one look a second.
    """
    request, _ = await own_request(site, call)
    changes = _changes(site, request, shows_by="operate" in caller_of(call).scopes)
    return event_stream(site, call, changes, "request", lambda one: one.now_ms)


async def _changes(
    site: Site, request: Request, *, shows_by: bool
) -> AsyncGenerator[RequestLive, None]:
    before: tuple[Progress, int] | None = None
    with site.watching(request) as watched:
        while True:
            progress = await watched.progress.get()
            found, now_ms = await _why_of(watched, progress)
            if before != (progress, now_ms):
                before = progress, now_ms
                yield RequestLive(detail_of(progress, shows_by=shows_by), found, now_ms)
            await asyncio.sleep(ENDED_S if progress.ended else LOOK_S)


async def _why_of(watched: Watched, progress: Progress) -> tuple[Why | None, int]:
    """Returns what holds up the request, and when that was read, in ms."""
    if progress.ended:
        return None, progress.ended_ms
    watched.note(progress)
    found = await watched.why.get()
    return why_of(found), found.now_ms


_ONE = "/v1/requests/{id}/live"
ENDPOINTS = (
    Endpoint(
        method="GET", path=_ONE, handle=follow, group="Live", scopes=("view",),
        summary="Watch a request", gives=RequestLive, streams=(EVENTS,), refuses=(404,),
    ),
)  # fmt: skip
