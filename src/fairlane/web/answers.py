"""Answers: JSON, lines of JSON, server-sent events, problem details (RFC 9457)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from starlette.responses import Response, StreamingResponse

from fairlane import errors
from fairlane.common import clock
from fairlane.web.counts import hides_data, without_data

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping

    from starlette.requests import Request as Call

    from fairlane.web.app import Site


MEDIA = "application/problem+json"
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_log = logging.getLogger(__name__)
_STATUS: tuple[tuple[type[errors.FairlaneError], int], ...] = (  # the first class that fits
    (errors.RequestExists, 409),
    (errors.InvalidArgument, 422),
    (errors.RequestNotFound, 404),
    (errors.DeadNotFound, 404),
    (errors.CallNotFound, 404),
    (errors.CallShared, 409),
    (errors.WorkerNotFound, 404),
    (errors.ScheduleNotFound, 404),
    (errors.WebhookNotFound, 404),
    (errors.RequestEnded, 409),
    (errors.RequestClosed, 409),
    (errors.RequestNotEnded, 409),
    (errors.DataLost, 410),
    (errors.ReceiptExpired, 410),
    (errors.QueueFull, 429),
    (errors.NotDurable, 503),
    (errors.RedisError, 503),
)
AGAIN_S = 5  # Retry-After while Redis does not answer


class Problem(msgspec.Struct, omit_defaults=True):
    """Why a call was refused. `type` names the kind of problem, `detail` is one sentence."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


class Refusal(Exception):
    """Ends a call with this status and one sentence."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, kind: str = ""
    ) -> None:
        detail = detail.encode("utf-8", "backslashreplace").decode()  # JSON has no half characters
        super().__init__(detail)
        self.status, self.detail, self.headers, self.kind = status, detail, headers, kind

    @property
    def problem(self) -> Problem:
        """Returns the problem details."""
        kind = f"urn:fairlane:problem:{self.kind}" if self.kind else "about:blank"
        return Problem(HTTPStatus(self.status).phrase, self.status, self.detail, kind)


def refusal_of(error: Exception) -> Refusal:
    """Returns the refusal for an error of the package, or of anything else: that is a bug."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, errors.FairlaneError):
        _log.error("a call failed", exc_info=error)
        return Refusal(500, "this is a bug of the server: its log has the details")
    status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
    name, text = type(error).__name__, str(error)
    if isinstance(error, errors.QueueFull):
        return Refusal(status, text, {"Retry-After": f"{error.retry_after_s:.0f}"}, name)
    if isinstance(error, errors.NotDurable):
        return Refusal(status, text, None, name)
    if isinstance(
        error, errors.RedisError
    ):  # its text names the server, which callers need not know
        _log.warning("%s", error)
        detail = "Redis does not answer or refuses the call: try again later"
        return Refusal(status, detail, {"Retry-After": str(AGAIN_S)}, name)
    return Refusal(status, text, None, name)


def as_problem(refusal: Refusal) -> Response:
    """Returns the answer with problem details."""
    content = msgspec.json.encode(refusal.problem)
    return Response(content, refusal.status, refusal.headers, MEDIA)


JSON, NDJSON = "application/json", "application/x-ndjson"


def counted_as(request: Call) -> str:
    """Returns the id of the caller's token, or its address."""
    name: str = request.state.counted_as
    return name


def answer(value: Any, status: int = 200) -> Response:
    """Returns a JSON answer, without data if the caller may see none."""
    if hides_data():
        value = without_data(value)
    return Response(msgspec.json.encode(value), status, media_type="application/json")


_TYPES = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_SIGN = re.compile("|".join(_BOUNDS))
_WRONG = re.compile(r"Expected `(?P<wanted>[^`]+)`(?:, got `(?P<given>[^`]+)`| (?P<bound>.+?))?")
_CHOICE = re.compile(r"Invalid enum value (?P<given>.+)")
_FIELD = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>[^`]+)`")


def type_sentence(error: str, kind: Any) -> str:
    """Returns what msgspec reports of a value that is no `kind`, in the words of this API."""
    text, _, path = error.partition(" - at `")
    place = path.removesuffix("`").removeprefix("$").removeprefix(".")
    if field := _FIELD.fullmatch(text):
        name = field["name"] + (f" of {place}" if place else "")
        if field["what"] == "missing required":
            return f"field {name} is missing: give it"
        return f"field {name} is not known: correct its name, or leave it out"
    if choice := _CHOICE.fullmatch(text):
        name = place or "the content"
        known = "/docs lists the values"
        if values := _choices(kind, place.partition("[")[0]):
            known = f"the values are {', '.join(values[:-1])} and {values[-1]}"
        return f"{name} {choice['given']:.40} is not known: {known}"
    found = _WRONG.fullmatch(text)
    if found is None:
        return f"{place or 'the content'} is not valid: see /docs"
    wanted = " or ".join(_TYPES.get(one, one) for one in found["wanted"].split(" | "))
    if found["bound"]:
        bound = _SIGN.sub(lambda sign: _BOUNDS[sign[0]], found["bound"].removesuffix(".0"))
        wanted += f" {bound}" if bound.startswith("of ") else f" of {bound}"
    given = _TYPES.get(found["given"], found["given"]) if found["given"] else "not valid"
    return f"{place or 'the content'} is {given}: {wanted} is expected"


def _choices(kind: Any, name: str) -> tuple[str, ...]:
    """Returns the texts that a field of a type may have, if it is one of a few; else ()."""
    for field in msgspec.structs.fields(kind) if isinstance(kind, type(msgspec.Struct)) else ():
        if field.encode_name == name:
            return tuple(_texts(field.type))
    return ()


def _texts(kind: Any) -> Iterator[str]:
    for part in get_args(kind):
        if isinstance(part, str) and get_origin(kind) is Literal:
            yield part
        yield from _texts(part)


T = TypeVar("T")
# ------------------------------------------------------------------ stream
# Answers that go on: lines of JSON, or server-sent events.


EVENTS = "text/event-stream"
BEAT_S = 15.0  # a comment goes out so often, so that no proxy ends a quiet stream
LOOK_S = 1.0  # between two looks whether the caller's token is still one
_END: Any = object()


def wants_events(request: Call) -> bool:
    """Returns True if the caller asks for server-sent events."""
    return EVENTS in request.headers.get("accept", "")


def _as_it_is(value: Any) -> Any:
    return value


def line_stream(site: Site, request: Call, source: AsyncGenerator[Any, None]) -> StreamingResponse:
    """Answers with one JSON value a line. If not all came, the last line is {"problem": ...}.

    Raises Refusal if the caller has too many streams.
    """
    site.check_room(counted_as(request))
    show = without_data if hides_data() else _as_it_is

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for value in _beating(site, request, source):
                if value is not None:
                    yield msgspec.json.encode(show(value)) + b"\n"
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
    show = without_data if hides_data() else _as_it_is

    async def events() -> AsyncIterator[bytes]:
        try:
            async for value in _beating(site, request, source):
                yield b":\n\n" if value is None else _event(name, show(value), id_of(value))
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
