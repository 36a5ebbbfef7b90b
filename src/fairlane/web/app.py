"""The ASGI application of a queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from fairlane import settings
from fairlane.common import clock
from fairlane.errors import FairlaneError
from fairlane.live import SharedDemand
from fairlane.web import (
    audit,
    bulk,
    failures,
    flows,
    keys,
    live,
    metrics,
    queues,
    requests,
    results,
    schedules,
    stacks,
    take,
    tasks,
    webhooks,
    why,
    wonderq,
)
from fairlane.web.access import LOCAL_HOSTS, Proxies, Sessions
from fairlane.web.answers import SAFE_HEADERS, Refusal, as_problem, counted_as, refusal_of
from fairlane.web.dashboard import files, sign_in
from fairlane.web.live import Broadcast, Examination
from fairlane.web.openapi import endpoints_for
from fairlane.web.route import Endpoint, routes_of
from fairlane.web.trail import Tally, keep_trail
from fairlane.web.waiting import Follower, Recent, SharedResultsReader, TakeLine
from fairlane.web.webhooks import Deliverer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request as Call
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fairlane.aio.queue import Queue
    from fairlane.aio.request import Request
    from fairlane.operations.observe import Snapshot
    from fairlane.protocol.steps import Operation
    from fairlane.records import KeyPage, Progress
    from fairlane.web.access import CallRates, TokenFile


WHY_KEEP_S = 5.0  # it reads the lanes
KEYS_KEEP_S = 3.0  # it reads the line of each key
KEYS_SHARED = 100
WITHDRAW_AGAIN_S = 1.0
MAX_HELD = 128 << 20  # bytes that the calls of one caller have sent and that are in memory
MAX_LONG_CALLS = 500  # of one token: streams, uploads, and calls that wait for work


class Watched:
    """A request that people watch: what is read of it once for all of them."""

    def __init__(self, request: Request) -> None:
        self.progress = Recent(request.progress)
        self.why = Recent(request.why, keep_s=WHY_KEEP_S)
        self.viewers = 0
        self._settings: tuple[object, ...] = ()

    def note(self, found: Progress) -> None:
        """Lets `why` be read anew if what holds up the request may be something else now."""
        waits = (found.held == 0, found.waiting == 0, found.opens_ms)
        settings_now = (found.state, found.limit, found.priority, found.rates, *waits)
        if settings_now != self._settings:
            self._settings = settings_now
            self.why.forget()


@dataclass
class Site:
    """A queue, who may call, and whether the server is stopping.

    `tokens` is None if no call ever needs one. A taken message is held for `visible_s` seconds.
    `hosts` are the names by which a server without tokens may be called,
    None = the application around it decides.
    `rates` bounds how often a caller calls; None = not at all. Webhooks may call addresses that are
    not of the Internet if `hooks_to_private`. `proxies` name their callers. `calls` are those that
    go on, and `long_calls` how many long ones each token has. `held` is how many bytes of content
    the calls of each token or address keep in memory. `is_over`: they are being ended.
    """

    queue: Queue
    tokens: TokenFile | None = None
    visible_s: float = settings.TAKE_VISIBLE_S
    hosts: frozenset[str] | None = LOCAL_HOSTS
    rates: CallRates | None = None
    hooks_to_private: bool = False
    proxies: Proxies = field(default_factory=Proxies)
    sessions: Sessions = field(default_factory=Sessions)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    follower: Follower = field(default_factory=Follower)
    examination: Examination = field(default_factory=Examination)
    snapshots: Recent[Snapshot] = field(init=False)
    failures: failures.SharedFailures = field(init=False)
    tasks: tasks.SharedTasks = field(init=False)
    readiness: Recent[bool] = field(init=False)
    key_page: Recent[KeyPage] = field(init=False)
    demand: SharedDemand = field(init=False)
    live: Broadcast = field(init=False)
    tally: Tally = field(init=False)
    watched: dict[str, Watched] = field(default_factory=dict)
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    long_calls: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    is_over: bool = False
    withdrawing: set[asyncio.Task[None]] = field(default_factory=set)
    results: SharedResultsReader = field(init=False)
    takes: TakeLine = field(default_factory=TakeLine)

    def __post_init__(self) -> None:
        self.snapshots = Recent(self.queue.snapshot)
        self.failures = failures.SharedFailures(self.queue)
        self.tasks = tasks.SharedTasks(self)
        self.demand = SharedDemand(self.snapshots.get, self.queue.demand)
        self.tally = Tally(self.queue)
        self.live = Broadcast(self.snapshots.get)
        self.readiness = Recent(self._check)
        self.key_page = Recent(lambda: self.queue.keys(KEYS_SHARED), keep_s=KEYS_KEEP_S)
        self.results = SharedResultsReader(self.queue)

    async def _check(self) -> bool:
        await self.queue.driver.check()
        return True

    @property
    def has_tokens(self) -> bool:
        """Returns True if each call needs a token."""
        return self.tokens is not None and self.tokens.is_needed

    def check_room(self, caller: str) -> None:
        """Raises Refusal if this token or address has as many long calls as it may have."""
        if self.long_calls[caller] >= MAX_LONG_CALLS:
            detail = f"{MAX_LONG_CALLS} calls of this caller wait or stream: end some of them first"
            raise Refusal(429, detail, {"Retry-After": "5"})

    @contextlib.contextmanager
    def long_call(self, caller: str) -> Iterator[None]:
        """Counts a call that may go on for long."""
        self.long_calls[caller] += 1
        try:
            yield
        finally:
            self.long_calls[caller] -= 1
            if not self.long_calls[caller]:
                del self.long_calls[caller]

    def hold(self, request: Call, size: int) -> Refusal | None:
        """Counts bytes of content in memory until the call ends.

        If the caller has too many, forgets those of this call, and returns why it is refused.
        """
        caller = counted_as(request)
        if self.held[caller] + size > MAX_HELD:
            self.let_go(request)
            detail = f"calls of this caller have sent {MAX_HELD >> 20} MiB: end some of them first"
            return Refusal(429, detail, {"Retry-After": "1", "Connection": "close"})
        self.held[caller] += size
        request.state.held = getattr(request.state, "held", 0) + size
        return None

    def let_go(self, request: Call) -> None:
        """Forgets the bytes of a call that has ended, or is refused."""
        if size := getattr(request.state, "held", 0):
            caller = counted_as(request)
            request.state.held = 0
            self.held[caller] -= size
            if not self.held[caller]:
                del self.held[caller]

    def withdraw(self, take_back: Callable[[], Operation[None]]) -> None:
        """Runs the operation until Redis answers, for an hour: then the request is given up."""

        async def run() -> None:
            ends = clock.mono_s() + settings.OPEN_MS / 1000
            while clock.mono_s() < ends:
                try:
                    await self.queue.driver.run(take_back())
                    break
                except FairlaneError:
                    await asyncio.sleep(WITHDRAW_AGAIN_S)

        task = asyncio.create_task(run())
        self.withdrawing.add(task)
        task.add_done_callback(self.withdrawing.discard)

    def end_calls(self) -> None:
        """Ends the calls that go on, because the server stops: each gets a refusal."""
        self.is_over = True
        for task in self.calls:
            task.cancel()

    @contextlib.contextmanager
    def watching(self, request: Request) -> Iterator[Watched]:
        """Shares what is read of a request among those that watch it concurrently."""
        watched = self.watched.setdefault(request.id, Watched(request))
        watched.viewers += 1
        try:
            yield watched
        finally:
            watched.viewers -= 1
            if not watched.viewers:
                del self.watched[request.id]


# ------------------------------------------------------------------ app
# The application and its middleware.


DESCRIBED: tuple[Endpoint, ...] = (
    *(*wonderq.ENDPOINTS, *requests.ENDPOINTS, *results.ENDPOINTS, *take.ENDPOINTS),
    *(*results.COMPLETION_ENDPOINTS, *failures.ENDPOINTS, *why.ENDPOINTS, *bulk.ENDPOINTS),
    *(*queues.ENDPOINTS, *keys.ENDPOINTS, *schedules.ENDPOINTS, *flows.ENDPOINTS, *audit.ENDPOINTS),
    *(*requests.LEASE_ENDPOINTS, *requests.WATCH_ENDPOINTS, *live.ENDPOINTS, *webhooks.ENDPOINTS),
    *(*tasks.ENDPOINTS, *stacks.ENDPOINTS, *metrics.ENDPOINTS),
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
