"""Answers that go on: lines of JSON, or server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import StreamingResponse

from fairlane.common import clock
from fairlane.web.problem import Refusal, refusal_of
from fairlane.web.reading import NDJSON
from fairlane.web.route import counted_as

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from starlette.requests import Request as Call

    from fairlane.web.site import Site


T = TypeVar("T")
EVENTS = "text/event-stream"
BEAT_S = 15.0  # a comment goes out so often, so that no proxy ends a quiet stream
LOOK_S = 1.0  # between two looks whether the caller's token is still one
_END: Any = object()


def wants_events(request: Call) -> bool:
    """Returns True if the caller asks for server-sent events."""
    return EVENTS in request.headers.get("accept", "")


def line_stream(site: Site, request: Call, source: AsyncGenerator[Any, None]) -> StreamingResponse:
    """Answers with one JSON value a line. If not all came, the last line is {"problem": ...}.

    Raises Refusal if the caller has too many streams.
    """
    site.check_room(counted_as(request))

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for value in _beating(site, request, source):
                if value is not None:
                    yield msgspec.json.encode(value) + b"\n"
        except Exception as error:  # noqa: BLE001  the status has been sent
            yield msgspec.json.encode({"problem": refusal_of(error).problem}) + b"\n"

    return StreamingResponse(lines(), media_type=NDJSON)


def event_stream(
    site: Site, request: Call, source: AsyncGenerator[T, None], name: str,
    id_of: Callable[[T], object],
) -> StreamingResponse:  # fmt: skip
    """Answers with events called `name`; `end` follows the last one, or `problem` an error.

    Raises Refusal if the caller has too many streams.
    """
    site.check_room(counted_as(request))

    async def events() -> AsyncIterator[bytes]:
        try:
            async for value in _beating(site, request, source):
                yield b":\n\n" if value is None else _event(name, value, id_of(value))
            yield _event("end", {})
        except Exception as error:  # noqa: BLE001  the status has been sent
            yield _event("problem", refusal_of(error).problem)

    return StreamingResponse(events(), media_type=EVENTS)


def _event(name: str, value: Any, event_id: object = None) -> bytes:
    """Returns one event. JSON has no line breaks, and ids come from the package."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"


async def _beating(
    site: Site, request: Call, source: AsyncGenerator[T, None]
) -> AsyncIterator[T | None]:
    """Yields each value, and None after each quiet BEAT_S.

    Raises Refusal if the server stops, or if the caller's token is revoked.
    """
    stopping = asyncio.create_task(site.stopping.wait())
    coming: asyncio.Task[T] | None = None
    looked = sent = clock.mono_s()
    with site.long_call(counted_as(request)):
        try:
            while True:
                coming = coming or asyncio.create_task(_next(source))
                done, _ = await asyncio.wait(
                    {coming, stopping}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                now = clock.mono_s()
                if now - looked >= LOOK_S:
                    request.state.check_still()
                    looked = now
                if coming in done:
                    value, coming = coming.result(), None
                    if value is _END:
                        return
                    yield value
                    sent = clock.mono_s()
                elif stopping in done:
                    raise Refusal(503, "the server stops: call again to read on")
                elif now - sent >= BEAT_S:
                    yield None
                    sent = clock.mono_s()
        finally:
            await _end(stopping, *([coming] if coming else []))
            await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source, _END)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
