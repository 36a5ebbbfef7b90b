"""/v1/requests/{id}/why and /v1/demand: why a request waits, and how much could start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fairlane.records import Demand, WhyWaiting
from fairlane.web.answers import answer
from fairlane.web.counts import LOOK
from fairlane.web.route import Endpoint, own_request
from fairlane.web.schemas import shown

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


async def why(site: Site, call: Call) -> Response:
    """Returns what holds up a request, its place in the lanes, and an estimate of its start."""
    request, _ = await own_request(site, call)
    return answer(why_shown(await request.why()))


async def demand(site: Site, _: Call) -> Response:
    """Returns how much work could start now: numbers for an autoscaler."""
    found, age_s = await site.demand.get()
    return answer(replace(found, age_ms=round(1000 * age_s)))


def why_shown(found: WhyWaiting) -> WhyWaiting:
    """Returns what holds up a request, without the token that submitted it."""
    return replace(found, request=shown(found.request, shows_by=False))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/requests/{id}/why", handle=why, group="Requests", scopes=LOOK,
        summary="Explain why a request waits", gives=WhyWaiting, refuses=(404,),
    ),
    Endpoint(
        method="GET", path="/v1/demand", handle=demand, group="Queue", scopes=LOOK,
        summary="Show how much work could start", gives=Demand,
    ),
)  # fmt: skip
