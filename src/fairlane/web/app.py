"""The ASGI application of a queue."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from fairlane.web import (
    audit,
    bulk,
    failures,
    flows,
    health,
    queues,
    requests,
    results,
    schedules,
    take,
    watch,
    webhooks,
    why,
    wonderq,
)
from fairlane.web import metrics as scrape
from fairlane.web.dashboard import files, sign_in
from fairlane.web.openapi.page import endpoints_for
from fairlane.web.problem import SAFE_HEADERS, Refusal, as_problem, refusal_of
from fairlane.web.route import Endpoint, routes_of
from fairlane.web.trail import keep_trail
from fairlane.web.webhooks import Deliverer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request as Call
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fairlane.web.site import Site

DESCRIBED: tuple[Endpoint, ...] = (
    *(*wonderq.ENDPOINTS, *requests.ENDPOINTS, *results.ENDPOINTS, *take.ENDPOINTS),
    *(*results.COMPLETION_ENDPOINTS, *failures.ENDPOINTS, *why.ENDPOINTS, *bulk.ENDPOINTS),
    *(*queues.ENDPOINTS, *schedules.ENDPOINTS, *flows.ENDPOINTS, *audit.ENDPOINTS),
    *(
        *requests.LEASE_ENDPOINTS,
        *requests.WATCH_ENDPOINTS,
        *watch.ENDPOINTS,
        *webhooks.ENDPOINTS,
        *health.ENDPOINTS,
    ),
    *scrape.ENDPOINTS,
)
ENDPOINTS = (*DESCRIBED, *endpoints_for(DESCRIBED), *sign_in.ENDPOINTS, *files.ENDPOINTS)
_TWO_LENGTHS = "the content has a Content-Length and a Transfer-Encoding: send one of them"
_UNKNOWN = {404: "there is no such path: /docs lists all of them"}


def make_app(site: Site) -> Starlette:
    """Returns the application.

    From its start to its end it delivers webhooks; then it closes the queue's connections.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        delivering = asyncio.create_task(
            Deliverer(site.queue, to_private=site.hooks_to_private).run()
        )
        recording = asyncio.create_task(keep_trail(site))
        try:
            yield
        finally:
            site.stopping.set()
            site.demand.stop()
            ending = (delivering, recording, *site.withdrawing)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            await site.queue.close()

    app = Starlette(
        routes=routes_of(site, ENDPOINTS),
        exception_handlers={HTTPException: _refuse, Exception: _refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.add_middleware(_ClearlyFramed)
    app.add_middleware(_SafeHeaders)
    return app


class _SafeHeaders:
    """Adds headers that answers lack: no browser guesses, keeps, embeds or runs an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


class _ClearlyFramed:
    """Refuses a call whose end two programs may see at two places, and ends its connection.

    A proxy that passes such a call on may take its content for another call.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        is_chunked = b"transfer-encoding" in names
        if is_chunked and (b"content-length" in names or scope.get("http_version") == "1.0"):
            refusal = Refusal(400, _TWO_LENGTHS, {"Connection": "close"})
            await as_problem(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _refuse(_: Call, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        detail = _UNKNOWN.get(error.status_code, "this path has no such method")
        return as_problem(Refusal(error.status_code, detail, error.headers))
    return as_problem(refusal_of(error))
