"""/v1/live, how the queue stands for all who watch it, and /v1/doctor, what is wrong with it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fairlane.web.live import Doctor, Live
from fairlane.web.route import Endpoint, answer
from fairlane.web.stream import EVENTS, event_stream

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.site import Site

_LOOK = ("view",)


async def live(site: Site, call: Call) -> Response:
    """Sends how the queue stands, once a second; the first event has its last minutes.

    With Last-Event-ID the first event has only what came since.
    """
    after = 0
    with contextlib.suppress(ValueError):
        after = int(call.headers.get("last-event-id", "0"))
    events = site.live.events(after if after <= site.live.number else 0)  # else of another process
    return event_stream(site, call, events, "live", lambda _: site.live.number)


async def doctor(site: Site, _: Call) -> Response:
    """Returns the findings of the last examination; it is made again after a minute."""
    return answer(await site.examination.read(site.queue))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/live", handle=live, group="Live", scopes=_LOOK,
        summary="Watch the queue", gives=Live, streams=(EVENTS,),
    ),
    Endpoint(
        method="GET", path="/v1/doctor", handle=doctor, group="Live", scopes=_LOOK,
        summary="Examine the servers and the queue", gives=Doctor, refuses=(503,),
    ),
)  # fmt: skip
