"""An endpoint: its method and path, who may call it, and what it reads and returns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import Response
from starlette.routing import Route

from fairlane.tracing import continued, text_of_headers
from fairlane.web.access import admit, check_still
from fairlane.web.problem import Refusal, as_problem, refusal_of
from fairlane.web.trail import GONE, REFUSED, recorded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fairlane.web.access import Caller
    from fairlane.web.site import Site

    Handle: TypeAlias = "Callable[[Site, Call], Awaitable[Response]]"


_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    A caller needs one of `scopes`; () = none. `takes` is the type of its JSON content, `query` that
    of its parameters, `gives` that of the answer with `status`. `streams` are other media types of
    the answer, `accepts` other ones of the content. `refuses` are further statuses. `also` are
    other paths of it. If `is_page`, links of other sites may lead to it: it has no data. With
    `changes` the audit trail gets an entry of each call, unless its handler `records_itself`. A GET
    that is not `is_safe` takes what it returns away from others, so HEAD is refused. `cost`: as how
    many calls it counts at a rate.
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
    is_safe: bool = True
    cost: float = 1.0
    records_itself: bool = False
    render: Callable[[Refusal], Response] = as_problem


def routes_of(site: Site, endpoints: Iterable[Endpoint]) -> list[Route]:
    """Returns a route for each path, which has all of its methods, so that 405 names them."""
    found: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        for path in (one.path, *one.also):
            found.setdefault(path, {})[one.method] = one
    return [_route(site, path, methods) for path, methods in found.items()]


def _route(site: Site, path: str, methods: dict[str, Endpoint]) -> Route:
    async def call(request: Call) -> Response:
        endpoint = methods["GET" if request.method == "HEAD" else request.method]
        task: Any = asyncio.current_task()
        site.calls.add(task)
        request.state.check_still = partial(check_still, site, request, endpoint.scopes)
        action = f"{endpoint.method} {endpoint.path}"
        try:
            caller = admit(
                site, request, endpoint.scopes, is_page=endpoint.is_page, cost=endpoint.cost
            )
            request.state.caller = caller
            with continued(_trace_of(request)):
                if not endpoint.changes or endpoint.records_itself:
                    return await endpoint.handle(site, request)
                async with recorded(site, request, action, endpoint.status):
                    return await endpoint.handle(site, request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except asyncio.CancelledError:
            if not site.is_over:
                raise
            task.uncancel()
            return endpoint.render(Refusal(503, "the server stops: repeat the call", _CLOSE))
        except Exception as error:  # noqa: BLE001  each error is one answer
            refusal = refusal_of(error)
            if refusal.status in REFUSED:
                await site.tally.refused(request, action, refusal)
            return endpoint.render(refusal)
        finally:
            site.calls.discard(task)

    route = Route(path, call, methods=[*methods])
    get = methods.get("GET")
    if get and (get.streams or not get.is_safe) and route.methods:
        route.methods.discard("HEAD")  # a stream may have no end
    return route


def _trace_of(request: Call) -> str:
    """Returns the trace that the caller's headers name, "" if there is none."""
    parents = request.headers.getlist("traceparent")
    if len(parents) != 1:
        return ""
    return text_of_headers(parents[0].strip(), ",".join(request.headers.getlist("tracestate")))


def caller_of(request: Call) -> Caller:
    """Returns the caller whom the route has admitted."""
    caller: Caller = request.state.caller
    return caller


def counted_as(request: Call) -> str:
    """Returns the id of the caller's token, or its address."""
    name: str = request.state.counted_as
    return name


def answer(value: Any, status: int = 200) -> Response:
    """Returns a JSON answer."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
