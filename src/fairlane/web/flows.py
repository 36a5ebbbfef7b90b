"""/v1/flows: the runs of flows that began in the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from fairlane.errors import InvalidArgument, RequestNotFound
from fairlane.operations.flow_hand_over import request_of
from fairlane.operations.flows import flow_page, place_of
from fairlane.records import Progress  # noqa: TC001  msgspec reads it
from fairlane.web.answers import Refusal, answer
from fairlane.web.route import Endpoint, Paging, document, query
from fairlane.web.schemas import Cancel, shown
from fairlane.web.trail import trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.aio.flows import AsyncFlowRun
    from fairlane.records import FlowProgress
    from fairlane.web.app import Site


class FlowFilters(Paging, forbid_unknown_fields=True):
    """The runs to find: of `flow`, with each `property` (NAME=VALUE, may be repeated)."""

    flow: str = ""
    property: list[str] = msgspec.field(default_factory=list)


class StepRow(msgspec.Struct):
    """A step with the counts of its request. `sources` are the steps that feed it.

    The first step has no source. If a step `is_compensating`, it gets the dead sub-requests of its
    source. `gets` is input, results, dead, branch (the results that name this step), chosen
    (children that results chose), join, or merge.
    """

    step: str
    queue: str
    sources: list[str]
    is_compensating: bool
    gets: str
    request: Progress


class FlowState(msgspec.Struct):
    """A run of a flow; `steps` are those that are still kept, in the flow's order.

    `state` is active, done or cancelled. It is unknown if a step is no longer kept, because that
    one may have been cancelled. `outcome` is as that of a request which has all its sub-requests.
    """

    id: str
    flow: str
    state: str
    outcome: str | None
    steps: list[StepRow]


class FlowList(msgspec.Struct):
    """Runs, unfinished ones first. `after` is the next page's cursor, null at the end."""

    flows: list[FlowState]
    after: str | None


async def find(site: Site, call: Call) -> Response:
    """Finds a page of the runs that have all these properties.

    A page reads a bounded part of the queue, so it may be empty although another one follows.
    """
    wanted = query(call, FlowFilters)
    pairs = [_property(text) for text in wanted.property]
    properties = dict(pairs)
    if len(properties) < len(pairs):
        raise Refusal(422, "a property is given twice: give each once")
    queue = site.queue
    reading = flow_page(queue.name, properties, wanted.flow, wanted.limit, wanted.after)
    page = await queue.driver.run(reading)
    found = await asyncio.gather(*(_kept(site, run) for run in page.runs))
    return answer(FlowList([_flow(one) for one in found if one is not None], page.after))


async def _kept(site: Site, run: str) -> FlowProgress | None:
    """Returns the steps of a run; None if the run has expired meanwhile."""
    try:
        return await site.queue.flows.run(run).progress()
    except RequestNotFound:
        return None


async def show(site: Site, call: Call) -> Response:
    """Returns the steps of a run with their counts."""
    run = await _own_run(site, call)
    return answer(_flow(await run.progress()))


async def cancel(site: Site, call: Call) -> Response:
    """Cancels every step of a run."""
    given = await document(call, Cancel)
    await trail_of(call).note(given=given.reason)
    run = await _own_run(site, call)
    await run.cancel(given.reason)
    return answer(_flow(await run.progress()))


async def _own_run(site: Site, call: Call) -> AsyncFlowRun:
    """Returns the run of the path. Raises Refusal, also if it began in another queue."""
    name = call.path_params["id"]
    try:
        run = site.queue.flows.run(name)
    except InvalidArgument as error:
        raise Refusal(404, str(error)) from None
    await site.queue.driver.run(place_of(name))
    first = await site.queue.request(request_of(name, 1)).progress()
    if first.queue != site.queue.name:
        raise Refusal(404, f"there is no flow {name} that began in queue {site.queue.name}")
    return run


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Refusal(422, f"property {text!r} is not valid: write NAME=VALUE")
    return name, value


def _flow(found: FlowProgress) -> FlowState:
    steps = [
        StepRow(
            one.step, one.progress.queue, list(one.sources), one.is_compensating, one.gets,
            shown(one.progress, shows_by=False),
        )
        for one in found.steps
    ]  # fmt: skip
    return FlowState(found.id, found.flow, found.state, found.outcome, steps)


_ONE, _GROUP = "/v1/flows/{id}", "Flows"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/flows", handle=find, group=_GROUP, scopes=("view",),
        summary="Find runs of flows", query=FlowFilters, gives=FlowList, refuses=(422,),
    ),
    Endpoint(
        method="GET", path=_ONE, handle=show, group=_GROUP, scopes=("view",),
        summary="Show a run", gives=FlowState, refuses=(404,),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/cancel", handle=cancel, group=_GROUP, scopes=("operate",),
        summary="Cancel a run", takes=Cancel, gives=FlowState, refuses=(404,),
        changes=True,
    ),
)  # fmt: skip
