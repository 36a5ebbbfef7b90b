"""/v1/requests/{id}/why and /v1/demand: why a request waits, and how much could start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.records import Cause, Estimate, Progress  # noqa: TC001  msgspec reads these
from fairlane.web.answers import answer
from fairlane.web.route import Endpoint, own_request
from fairlane.web.schemas import shown

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.records import WhyWaiting
    from fairlane.web.app import Site


class DemandState(msgspec.Struct):
    """How many more leases workers could take now; `wanted` also counts those that they hold.

    Divide `wanted` by the units of one worker to get the number of workers. With more than 500
    requests these are the numbers of the server's last walk over all of them, `age_ms` old. Until
    the first walk has ended, tokens are counted, and `is_exact` is false.
    """

    queue: str
    demand: int
    held: int
    wanted: int
    requests: int
    is_paused: bool
    is_exact: bool
    age_ms: int


class Why(msgspec.Struct):
    """What holds up a request, the cause that matters most first; none = it has ended.

    `place` 1 is the token that the next free worker takes; null = there is none that one could
    take. `workers` is worker -> permits that it holds.
    """

    request: Progress
    causes: list[Cause]
    workers: dict[str, int]
    place: int | None
    place_is_exact: bool | None
    estimate: Estimate
    now_ms: int


async def why(site: Site, call: Call) -> Response:
    """Returns what holds up a request, its place in the lanes, and an estimate of its start."""
    request, _ = await own_request(site, call)
    return answer(why_of(await request.why()))


async def demand(site: Site, _: Call) -> Response:
    """Returns how much work could start now: numbers for an autoscaler."""
    found, age_s = await site.demand.get()
    age_ms = round(1000 * age_s)
    return answer(DemandState(**found._asdict(), wanted=found.wanted, age_ms=age_ms))


def why_of(found: WhyWaiting) -> Why:
    """Returns what holds up a request as JSON has it."""
    place = found.lane_place
    is_known = place is not None and not place.is_lost
    return Why(
        shown(found.progress, shows_by=False),
        found.causes,
        found.workers,
        place.place if place is not None and is_known else None,
        place.is_exact if place is not None and is_known else None,
        found.estimate,
        found.now_ms,
    )


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/requests/{id}/why", handle=why, group="Requests", scopes=("view",),
        summary="Explain why a request waits", gives=Why, refuses=(404,),
    ),
    Endpoint(
        method="GET", path="/v1/demand", handle=demand, group="Queue", scopes=("view",),
        summary="Show how much work could start", gives=DemandState,
    ),
)  # fmt: skip
