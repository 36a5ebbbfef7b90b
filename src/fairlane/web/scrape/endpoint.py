"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response

from fairlane.errors import FairlaneError
from fairlane.web.endpoint.route import Endpoint
from fairlane.web.scrape.families import absent, families

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import Metric
    from starlette.requests import Request

    from fairlane.web.endpoint.site import Site

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_MOST_S = 5.0  # Prometheus waits ten seconds by default


class _Families:
    """A collector of what was read already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


async def metrics(site: Site, _: Request) -> Response:
    """Returns the metrics; 200 also if Redis does not answer: one metric reports that."""
    queue = site.queue
    try:
        async with asyncio.timeout(_MOST_S):
            snapshot = await site.snapshots.get()
            found = families(snapshot, (await site.demand.get()).demand)
    except (TimeoutError, FairlaneError):
        found = absent(queue.name)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(found))
    return Response(generate_latest(registry), media_type=MEDIA)


ENDPOINTS = (
    Endpoint(
        method="GET", path="/metrics", handle=metrics, group="Health", scopes=("view",), gives=str,
        summary="Show the queue as metrics for Prometheus", streams=(MEDIA,),
    ),
)  # fmt: skip
