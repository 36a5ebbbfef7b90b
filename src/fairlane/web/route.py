"""An endpoint: how it is called, by whom, with which content."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.responses import Response
from starlette.routing import Route

from fairlane import settings
from fairlane.common import clock
from fairlane.common.text import exact
from fairlane.errors import InvalidArgument
from fairlane.tracing import continued, text_of_headers
from fairlane.web.access import admit, check_still
from fairlane.web.answers import JSON, Refusal, as_problem, refusal_of, type_sentence
from fairlane.web.counts import hiding, shows_data
from fairlane.web.trail import GONE, REFUSED, recorded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from fairlane.aio.request import Request
    from fairlane.records import Progress
    from fairlane.web.access import Caller
    from fairlane.web.app import Site

    Handle: TypeAlias = "Callable[[Site, Call], Awaitable[Response]]"


T = TypeVar("T")
_CLOSE = {"Connection": "close"}
FORM, UPLOAD = "application/x-www-form-urlencoded", "multipart/form-data"
MOST = 8 << 20  # bytes of a JSON document with bodies or ids ...
MOST_SMALL = 64 << 10  # ... and of any other one
UPLOAD_HELD = 4 << 20  # bytes that an upload of lines keeps in memory, however long it is
MOST_ITEMS = 100_000  # of a list with bodies or ids: more of them come as lines, or in parts
WHOLE_S = 120.0  # a document must be there by then
DISCARDED_MOST = 32 << 20  # bytes that are read after a refusal, so that the caller sees it
_LOOK_S = 1.0  # between two looks whether the caller's token is still one
CHUNK_S = 30.0  # a client may pause so long between two parts of its content
PATIENCE_S = 600.0  # for what comes in lines, and more time for each byte that has come
SLOWEST = 1_024  # bytes a second: what comes more slowly ends when that time is over
_SHOWN_MOST = 60  # characters of what is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path.

    A caller needs one of `scopes`; () = none. If it has only counts of them, its answer has no data
    (counts.py). `takes` is the type of its JSON content, `query` that
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
        request.state.hold = partial(site.hold, request)
        action = f"{endpoint.method} {endpoint.path}"
        try:
            caller = admit(
                site, request, endpoint.scopes, is_page=endpoint.is_page, cost=endpoint.cost
            )
            request.state.caller = caller
            hides = not shows_data(endpoint.scopes, caller.scopes)
            with continued(_trace_of(request)), hiding(hides=hides):
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
            site.let_go(request)

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


# ------------------------------------------------------------------ content
# Reads the content of a call within bounds of size and time.


def media_of(request: Call) -> str:
    """Returns the content's media type, without parameters; "" if the caller names none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def parts(request: Call, whole_s: float | None = None) -> AsyncIterator[bytes]:
    """Yields the content as it comes; all of it must come within `whole_s`.

    None: as slowly as SLOWEST, after PATIENCE_S. Only time in which the client is waited for
    counts. Raises Refusal if the content is encoded, if the client is too slow, or if its token is
    revoked meanwhile.
    """
    _check_plain("Content-Encoding", request.headers.get("content-encoding", ""), {"identity"})
    left_s = PATIENCE_S if whole_s is None else whole_s
    check_still = getattr(request.state, "check_still", None)
    looked = clock.mono_s()
    async with contextlib.aclosing(request.stream()) as stream:
        while True:
            began = clock.mono_s()
            try:
                async with asyncio.timeout(min(CHUNK_S, left_s)):
                    part = await anext(stream, None)
            except TimeoutError:
                raise _too_slow(whole_s, is_quiet=left_s > CHUNK_S) from None
            if part is None:
                return
            now = clock.mono_s()
            left_s -= now - began
            if whole_s is None:
                left_s += len(part) / SLOWEST
            if left_s <= 0:
                raise _too_slow(whole_s)
            if check_still is not None and now - looked >= _LOOK_S:
                check_still()
                looked = now
            yield part


def _check_plain(header: str, value: str, plain: set[str]) -> None:
    """Raises Refusal if a header says that the content must be decoded: it would be stored so."""
    if value.strip().lower() not in {"", *plain}:
        shown = f"{header} {value[:_SHOWN_MOST]}"
        detail = f"{shown} is not read here: send the content as it is"
        raise Refusal(415, detail, {"Accept-Encoding": "identity", **_CLOSE})


def _too_slow(whole_s: float | None, *, is_quiet: bool = False) -> Refusal:
    if is_quiet:
        detail = f"nothing came for {exact(CHUNK_S)} s: send the content faster"
    elif whole_s is None:
        detail = (
            f"less than {SLOWEST:,} bytes a second came for {exact(PATIENCE_S)} s: send the "
            "content faster, or in several requests"
        )
    else:
        detail = f"the content took longer than {exact(whole_s)} s: send it faster"
    return Refusal(408, detail, _CLOSE)


async def content(request: Call, most: int = MOST_SMALL, *, whole_s: float | None = None) -> bytes:
    """Returns the whole content. Raises Refusal if it is larger than `most` bytes."""
    detail = f"the content is larger than {most:,} bytes: send it in parts"
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most and "expect" in request.headers:
        raise Refusal(413, detail, _CLOSE)  # before the caller sends it
    found = bytearray()
    source = parts(request, WHOLE_S if whole_s is None else whole_s)
    hold = getattr(request.state, "hold", None)
    async for part in source:
        found += part
        if len(found) > most:
            await _refuse(source, Refusal(413, detail, _CLOSE))
        if hold is not None and (refusal := hold(len(part))):
            found.clear()
            await _refuse(source, refusal)
    return bytes(found)


async def _refuse(source: AsyncIterator[bytes], refusal: Refusal) -> NoReturn:
    """Raises Refusal after the rest was read: a caller that still sends gets no answer."""
    discarded = 0
    async for part in source:
        discarded += len(part)
        if discarded > DISCARDED_MOST:
            break
    raise refusal


async def document(
    request: Call,
    kind: type[T],
    most: int = MOST_SMALL,
    *,
    whole_s: float | None = None,
    others: tuple[str, ...] = (),
) -> T:
    """Returns a JSON document of this type, of at most `most` bytes; no content means {}.

    Raises Refusal: 400 if it is no JSON, 413 if it is too large, 415 for other content, 422 if it
    is of another type, or if the URL has parameters. `others` are the other types that the endpoint
    reads.
    """
    if media_of(request) not in {"", JSON} and not media_of(request).endswith("+json"):
        *first, last = (JSON, *others)
        named = f"{', '.join(first)} or {last}" if first else last
        raise Refusal(415, f"{media_of(request)} is not read here: send {named}")
    if request.query_params:
        name = next(iter(request.query_params))
        raise Refusal(422, f"parameter {name[:_SHOWN_MOST]} is not read here: give it in the JSON")
    return decoded(await content(request, most, whole_s=whole_s) or b"{}", kind)


def decoded(raw: bytes, kind: type[T]) -> T:
    """Returns JSON as this type.

    Raises Refusal: 400 if it is no JSON, 422 for another type, or for a name that is twice in an
    object, because readers differ in which value counts.
    """
    try:
        found = msgspec.json.decode(raw, type=kind)
        json.loads(raw, object_pairs_hook=_check_pairs, parse_int=str, parse_float=str)
    except msgspec.ValidationError as error:
        raise Refusal(422, type_sentence(f"{error}", kind)) from None
    except UnicodeDecodeError:
        raise Refusal(400, "the content is no JSON: its text is not UTF-8") from None
    except msgspec.DecodeError as error:
        place = re.search(r"\(byte (\d+)\)", f"{error}")
        why = f"byte {place[1]} is not valid" if place else "it breaks off"
        raise Refusal(400, f"the content is no JSON: {why}") from None
    except RecursionError:
        detail = "the content is no JSON that is read here: it is nested too deeply"
        raise Refusal(400, detail) from None
    return found


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({name for name, _ in pairs}) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        (name, _), *_ = counts.most_common(1)
        raise Refusal(422, f"name {name[:_SHOWN_MOST]!r} is twice in an object: give it once")


def _kinds(kind: Any) -> Iterator[Any]:
    """Yields a type without its parameters, and those that it is a union or an annotation of."""
    yield get_origin(kind) or kind
    if get_origin(kind) in {Annotated, Union, UnionType}:
        for part in get_args(kind):
            yield from _kinds(part)


def query(request: Call, kind: type[T]) -> T:
    """Returns the query as this type; only a list may be given several times. Raises Refusal."""
    given: dict[str, str | list[str]] = {}
    fields = {one.encode_name: one.type for one in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    for name in request.query_params:
        values = request.query_params.getlist(name)
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise Refusal(422, f"parameter {name} is not known: the parameters are {known}")
        kinds = set(_kinds(fields[name]))
        is_list = bool(kinds & {list, tuple})
        if len(values) > 1 and not is_list:
            times = "twice" if len(values) == 2 else f"{len(values):,} times"  # noqa: PLR2004
            raise Refusal(422, f"parameter {name} is given {times}: give it once")
        given[name] = values if list in kinds or len(values) > 1 else values[0]
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(422, type_sentence(f"{error}", kind)) from None


async def lines(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    r"""Yields the lines of what comes, lazily, as the command line reads a file.

    A line ends at \n, and its bytes are kept as they are, also if there are none. Nothing after a
    last \n is no line. Raises Refusal if a line is larger than a body may be.
    """
    rest = b""
    async for part in source:
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > settings.MAX_BODY + 1:
            detail = f"a line is longer than {settings.MAX_BODY:,} bytes: that is the most"
            await _refuse(source, Refusal(413, detail, _CLOSE))
    if rest:
        yield rest


# ------------------------------------------------------------------ upload
# Reads the file of a multipart form while it comes: nothing of it is kept.


_HEADERS_MOST = 8 << 10  # bytes of all names and values of the headers of one part
_UNCODED = {"7bit", "8bit", "binary"}
_NO_FORM = "the content is no multipart form"


class _Parts:
    """What the parser has found: the file's bytes that were not read yet, and what is refused."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.files = 0
        self.is_whole = False
        self.refusal: Refusal | None = None
        self._name = self._value = self._place = b""
        self._length = 0

    def callbacks(self) -> dict[str, Any]:
        """Returns what the parser calls."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._name = self._value = self._place = b""
        self._length = 0

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += self._bounded(data, start, end)

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += self._bounded(data, start, end)

    def _bounded(self, data: bytes, start: int, end: int) -> bytes:
        self._length += end - start
        if self._length > _HEADERS_MOST:
            self._refuse(Refusal(400, f"{_NO_FORM}: a part's headers are too long"))
            return b""
        return data[start:end]

    def _end_header(self) -> None:
        name = self._name.lower()
        if name == b"content-disposition":
            self._place = self._value
        elif name == b"content-transfer-encoding":
            self._check_encoding()
        self._name = self._value = b""

    def _check_encoding(self) -> None:
        try:
            _check_plain("Content-Transfer-Encoding", self._value.decode("latin-1"), _UNCODED)
        except Refusal as refusal:
            self._refuse(refusal)

    def _end_headers(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._place)
        if b"filename" not in options:
            self._refuse(Refusal(422, "a form has only a file: give options as parameters"))
        self.files += 1
        if self.files > 1:
            self._refuse(Refusal(422, "the form has two files: send each in a call of its own"))

    def _add(self, data: bytes, start: int, end: int) -> None:
        self.found.append(data[start:end])

    def _end(self) -> None:
        self.is_whole = True

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = self.refusal or refusal


async def file_parts(request: Call) -> AsyncIterator[bytes]:
    """Yields the file of a form as it comes.

    Raises Refusal: 400 if it is no form or breaks off, 422 if it has anything but one file.
    """
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    _, options = parse_options_header(request.headers.get("content-type", ""))
    state = _Parts()
    try:
        parser = MultipartParser(options.get(b"boundary", b""), state.callbacks())  # type: ignore[arg-type]
        async for part in parts(request):
            parser.write(part)
            if state.refusal:
                raise state.refusal
            for data in state.found:
                yield data
            state.found.clear()
    except FormParserError:
        raise Refusal(400, f"{_NO_FORM}: send multipart/form-data with one file") from None
    if not state.is_whole or not state.files:
        raise Refusal(400, f"{_NO_FORM} with one file, or it breaks off")


# ------------------------------------------------------------------ own
# The request of a path: only those of the server's queue are there.


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


# ------------------------------------------------------------------ pages
# Where a page of rows begins, and how many rows it has.


Rows = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class After(msgspec.Struct, forbid_unknown_fields=True):
    """Where a page begins: the `after` of the page before."""

    after: str = ""


class Paging(After, forbid_unknown_fields=True):
    """A page of at most `limit` rows."""

    limit: Rows = 100


class Limit(msgspec.Struct, forbid_unknown_fields=True):
    """The most rows of the answer."""

    limit: Rows = 100
