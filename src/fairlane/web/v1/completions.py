"""/v1/completions: an event for each request that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.operations.completion import LogReader, last_completion
from fairlane.web.endpoint.reading import query
from fairlane.web.endpoint.route import Endpoint
from fairlane.web.endpoint.stream import EVENTS, event_stream
from fairlane.web.v1.requests import READ
from fairlane.web.v1.schemas import Ending, Since, ending_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.model import Completion
    from fairlane.web.endpoint.site import Site


async def completions(site: Site, call: Call) -> Response:
    """Sends an event for each request that ends, without an end.

    Begins behind Last-Event-ID, or at `since`, or now. 410: the log has lost that place.
    """
    after = call.headers.get("last-event-id") or query(call, Since).since
    if not after:
        after = await site.queue.driver.run(last_completion(site.queue.name))
    seen = site.follower.count
    reader = LogReader(site.queue.name, after)
    first = await site.queue.driver.run(reader.page())
    source = _endings(site, reader, first, seen)
    return event_stream(site, call, source, "ended", lambda one: one.log_id)


async def _endings(
    site: Site, reader: LogReader, page: list[Completion], seen: int
) -> AsyncGenerator[Ending, None]:
    async with site.follower.following(site.queue):
        while True:
            for one in page:
                yield ending_of(one)
            if page:
                reader.after = page[-1].log_id
            else:
                await site.follower.wait(seen)
            seen = site.follower.count
            page = await site.queue.driver.run(reader.page())


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/completions", handle=completions, group="Results", scopes=READ,
        summary="Follow the endings of requests", query=Since, gives=Ending, streams=(EVENTS,),
        refuses=(410, 422),
    ),
)  # fmt: skip
