"""/v1/requests/{id}/results and /v1/completions: what became of sub-requests and requests."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

from fairlane.operations.completion import LogReader, last_completion
from fairlane.records import Completion
from fairlane.web.answers import EVENTS, NDJSON, Refusal, event_stream, line_stream, wants_events
from fairlane.web.requests import READ
from fairlane.web.route import Endpoint, caller_of, own_request, query
from fairlane.web.schemas import ResultLine, ResultOrder, Since, result_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.records import Result
    from fairlane.web.app import Site


# ------------------------------------------------------------------ results
# /v1/requests/{id}/results: what became of the sub-requests of a request.


ORDERS = ("input", "done")
_INDEX = re.compile(r"[0-9]{1,18}")
_SHOWN = 60  # characters of what is refused


async def results(site: Site, call: Call) -> Response:
    """Returns every result, also while the request runs: NDJSON, or events if they are accepted.

    An event's id is the index in input order, else how many results came before it. With
    Last-Event-ID the stream continues at the next result.
    """
    wanted = query(call, ResultOrder)
    order = wanted.order
    if order not in ORDERS:
        raise Refusal(422, f"order {order!r} is not valid: write {' or '.join(ORDERS)}")
    request, progress = await own_request(site, call)
    caller = caller_of(call)
    is_own = progress.by is not None and progress.by == caller.id
    if wanted.reveal and not is_own and "operate" not in caller.scopes:
        detail = "reveal is for the token that submitted the request, and for the scope operate"
        raise Refusal(403, detail)
    hidden = () if wanted.reveal else progress.redact
    after = -1
    if given := call.headers.get("last-event-id"):
        if not _INDEX.fullmatch(given):
            shown = given[:_SHOWN]
            raise Refusal(422, f"Last-Event-ID {shown!r} is no id of a result: give the last one")
        after = int(given)
    source = _results(site.results.results(request.id, order), order, after, hidden)
    if wants_events(call):
        places = itertools.count(after + 1)
        by_index = order == "input"
        return event_stream(
            site, call, source, "result", lambda one: one.index if by_index else next(places)
        )
    return line_stream(site, call, source)


async def _results(
    found: AsyncGenerator[Result, None], order: str, after: int, hidden: Sequence[str]
) -> AsyncGenerator[ResultLine, None]:
    """Yields the results behind the place `after`: their order never changes."""
    place = -1
    async with contextlib.aclosing(found):
        async for one in found:
            place = one.index if order == "input" else place + 1
            if place > after:
                yield result_of(one, hidden)


_ONE = "/v1/requests/{id}"
ENDPOINTS = (
    Endpoint(
        method="GET", path=f"{_ONE}/results", handle=results, group="Results", scopes=READ,
        summary="Read the results while the request runs", query=ResultOrder, gives=ResultLine,
        streams=(NDJSON, EVENTS), refuses=(403, 404, 422),
    ),
)  # fmt: skip


# ------------------------------------------------------------------ completions
# /v1/completions: an event for each request that ends.


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
) -> AsyncGenerator[Completion, None]:
    async with site.follower.following(site.queue):
        while True:
            for one in page:
                yield one
            if page:
                reader.after = page[-1].log_id
            else:
                await site.follower.wait(seen)
            seen = site.follower.count
            page = await site.queue.driver.run(reader.page())


COMPLETION_ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/completions", handle=completions, group="Results", scopes=READ,
        summary="Follow the endings of requests", query=Since, gives=Completion, streams=(EVENTS,),
        refuses=(410, 422),
    ),
)  # fmt: skip
