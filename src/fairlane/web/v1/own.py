"""The request of a path: only those of the server's queue are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.errors import InvalidArgument
from fairlane.web.endpoint.problem import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.aio.request import Request
    from fairlane.model import Progress
    from fairlane.web.endpoint.site import Site


async def own_request(site: Site, call: Call) -> tuple[Request, Progress]:
    """Returns the request that the path names, and its counts. Raises Refusal, RequestNotFound."""
    name = call.path_params["id"]
    try:
        request = site.queue.request(name)
    except InvalidArgument as error:
        raise Refusal(404, str(error)) from None
    progress = await request.progress()
    check_own(site, name, progress.queue)
    return request, progress


def check_own(site: Site, name: str, queue: str) -> None:
    """Raises Refusal unless the request's queue is that of the server."""
    if queue != site.queue.name:
        raise Refusal(404, f"there is no request {name} in queue {site.queue.name}")
