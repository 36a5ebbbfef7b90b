"""An endpoint: its method and path, who may call it, and what it reads and returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from fairlane.web.endpoint.admission import admit
from fairlane.web.endpoint.problem import Refusal, as_problem, refusal_of
from fairlane.web.endpoint.trail import recorded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairlane.web.access.caller import Caller
    from fairlane.web.endpoint.site import Site

    Handle = Callable[[Site, Request], Awaitable[Response]]

_GONE = 499  # the caller closed the connection; nothing reads this


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    A caller needs one of `scopes`; () = none. `takes` is the type of its JSON content, `query` that
    of its parameters, `gives` that of the answer with `status`. `streams` are other media types of
    the answer, `accepts` other ones of the content. `refuses` are further statuses. `also` are
    other paths of it. If `is_page`, links of other sites may lead to it: it has no data. With
    `changes` the audit trail gets an entry of each call.
    """

    method: str
    path: str
    handle: Handle
    summary: str
    group: str
    scopes: tuple[str, ...] = ()
    takes: Any = None
    query: Any = None
    gives: Any = None
    status: int = 200
    accepts: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    refuses: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    is_page: bool = False
    changes: bool = False
    render: Callable[[Refusal], Response] = as_problem


def routes_of(site: Site, endpoint: Endpoint) -> list[Route]:
    """Returns the routes of an endpoint for a server."""

    async def call(request: Request) -> Response:
        try:
            caller = admit(site, request, endpoint.scopes, is_page=endpoint.is_page)
            request.state.caller = caller
            if not endpoint.changes:
                return await endpoint.handle(site, request)
            action = f"{endpoint.method} {endpoint.path}"
            async with recorded(site, request, action, endpoint.status):
                return await endpoint.handle(site, request)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:  # noqa: BLE001  each error is one answer
            return endpoint.render(refusal_of(error))

    return [
        Route(path, call, methods=[endpoint.method]) for path in (endpoint.path, *endpoint.also)
    ]


def caller_of(request: Request) -> Caller:
    """Returns the caller whom the route has admitted."""
    caller: Caller = request.state.caller
    return caller


def answer(value: Any, status: int = 200) -> Response:
    """Returns a JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
