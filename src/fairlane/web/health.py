"""Liveness and readiness, for what starts and watches the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlane.web.answers import Refusal, answer
from fairlane.web.route import Endpoint
from fairlane.web.schemas import Health

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site

_MOST_S = 2.0


async def live(_: Site, __: Call) -> Response:
    """Returns 200 while the process answers."""
    return answer(Health())


async def ready(site: Site, _: Call) -> Response:
    """Returns 200 if Redis answers and the server does not stop; Redis is asked once a second."""
    if site.stopping.is_set():
        raise Refusal(503, "the server stops")
    try:
        async with asyncio.timeout(_MOST_S):
            await site.readiness.get()
    except TimeoutError:
        raise Refusal(503, "Redis does not answer") from None
    return answer(Health())


ENDPOINTS = (
    Endpoint(
        method="GET", path="/livez", handle=live, group="Health", summary="Is the process alive",
        gives=Health, cost=0,
    ),
    Endpoint(
        method="GET", path="/readyz", handle=ready, group="Health", summary="Can it serve calls",
        gives=Health, refuses=(503,), cost=0,
    ),
)  # fmt: skip
