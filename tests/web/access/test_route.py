"""Tests how the content of a call is read, within bounds of time and size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from starlette.requests import Request

from fairlane.web import route
from fairlane.web.answers import Refusal
from fairlane.web.route import file_parts
from fairlane.web.schemas import Bytes  # noqa: TC001  msgspec reads the types
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def call(*given: bytes, ends: bool = True, coding: bytes = b"") -> Request:
    """Makes a call whose content comes in these parts; without an end it stops sending."""
    parts = list(given)

    async def receive() -> dict[str, Any]:
        if not parts and not ends:
            await asyncio.Event().wait()
        body = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": body, "more_body": bool(parts) or not ends}

    headers = [(b"content-encoding", coding)] if coding else []
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


async def lines_of(request: Request) -> list[bytes]:
    return [line async for line in route.lines(route.parts(request))]


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What a call may send."""

    bodies: list[Bytes]
    priority: Annotated[int, msgspec.Meta(ge=0, le=99)] = 5
    rate: str | None = None
    tags: Annotated[list[str], msgspec.Meta(max_length=2)] = []


@for_each(
    "raw, status, sentence",
    [
        (b'{"bodies": "a"}', 422, "bodies is text: a list is expected"),
        (b'{"bodies": [7]}', 422, "bodies[0] is a whole number: text or an object is expected"),
        (b'{"bodies": [], "priority": "x"}', 422, "priority is text: a whole number is expected"),
        (
            b'{"bodies": [], "priority": -1}',
            422,
            "priority is not valid: a whole number of at least 0 is expected",
        ),
        (
            b'{"bodies": [], "priority": 100}',
            422,
            "priority is not valid: a whole number of at most 99 is expected",
        ),
        (b'{"bodies": [], "rate": []}', 422, "rate is a list: text or null is expected"),
        (b"{}", 422, "field bodies is missing: give it"),
        (b'{"bodies": [{}]}', 422, "field base64 of bodies[0] is missing: give it"),
        (
            b'{"bodies": [], "prority": 1}',
            422,
            "field prority is not known: correct its name, or leave it out",
        ),
        (b"[1]", 422, "the content is a list: an object is expected"),
        (
            b'{"bodies": [], "tags": ["a", "b", "c"]}',
            422,
            "tags is not valid: a list of length at most 2 is expected",
        ),
        (b'{"bodies": [', 400, "the content is no JSON: it breaks off"),
        (b'{"bodies": ["\xff"]}', 400, "the content is no JSON: its text is not UTF-8"),
        (b'{"bodies": x}', 400, "the content is no JSON: byte 11 is not valid"),
    ],
)
def test_content_of_another_type_is_refused_in_a_sentence_of_ours(
    raw: bytes, status: int, sentence: str
):
    with pytest.raises(Refusal) as refused:
        route.decoded(raw, Wanted)
    assert (refused.value.status, refused.value.detail) == (status, sentence)


@pytest.mark.parametrize("read", [route.content, lines_of])
def test_a_caller_that_goes_quiet_is_refused(
    read: Callable[[Request], Coroutine[Any, Any, Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(route, "CHUNK_S", 0.01)
    with pytest.raises(Refusal, match="nothing came for") as refused:
        asyncio.run(read(call(b"a", ends=False)))
    assert refused.value.status == 408


@pytest.mark.parametrize("read", [route.content, lines_of])
def test_content_that_is_compressed_is_refused(
    read: Callable[[Request], Coroutine[Any, Any, Any]],
):
    with pytest.raises(Refusal, match="Content-Encoding gzip is not read here") as refused:
        asyncio.run(read(call(b"\x1f\x8b", coding=b"gzip")))
    assert refused.value.status == 415
    assert asyncio.run(read(call(b"a", coding=b"Identity")))


@pytest.mark.parametrize(("size", "is_refused"), [(1, True), (20 * route.SLOWEST, False)])
def test_lines_that_trickle_in_are_refused(
    size: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
):
    now = 0.0
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now)

    async def receive() -> dict[str, Any]:
        nonlocal now
        now += 20.0
        body = b"x" * (size - 1) + b"\n"
        return {"type": "http.request", "body": body, "more_body": now < 10_000}

    async def read() -> int:
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        return len(await lines_of(request))

    if not is_refused:
        assert asyncio.run(read()) == 500
        return
    with pytest.raises(Refusal, match="less than 1,024 bytes a second") as refused:
        asyncio.run(read())
    assert (refused.value.status, now) == (408, 620.0)


def test_only_the_time_of_the_caller_counts(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: now)

    async def read() -> int:
        nonlocal now
        count = 0
        async for part in route.parts(call(*[b"x"] * 9), 10.0):
            now += 100.0  # the queue is slow
            count += len(part)
        return count

    assert asyncio.run(read()) == 9


def test_lines_are_cut_wherever_the_parts_end():
    whole = b"one\r\ntwo\n\n\nthree\n"
    for at in range(1, len(whole)):
        assert asyncio.run(lines_of(call(whole[:at], whole[at:]))) == [
            b"one\r",
            b"two",
            b"",
            b"",
            b"three",
        ]


def form(boundary: bytes = b"B") -> bytes:
    head = b'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    return b"--" + boundary + b"\r\n" + head + b"one\r\n\ntwo\r\n--" + boundary + b"--\r\n"


def upload(*given: bytes, kind: str = "multipart/form-data; boundary=B") -> Request:
    request = call(*given)
    request.scope["headers"] = [(b"content-type", kind.encode())]
    return request


async def file_of(request: Request) -> list[bytes]:
    source = route.lines(file_parts(request))
    return [line async for line in source]


def test_the_file_of_a_form_is_read_wherever_its_parts_end():
    whole = form()
    for at in range(1, len(whole)):
        assert asyncio.run(file_of(upload(whole[:at], whole[at:]))) == [b"one\r", b"", b"two"]


@for_each(
    "given, kind, status",
    [
        (b"no form", "multipart/form-data; boundary=B", 400),
        (form(), "multipart/form-data", 400),
        (form()[:-8], "multipart/form-data; boundary=B", 400),
        (b"--B--\r\n", "multipart/form-data; boundary=B", 400),
        (form().replace(b"filename", b"x"), "multipart/form-data; boundary=B", 422),
        (form()[:-4] + b"\r\n" + form()[5:], "multipart/form-data; boundary=B", 422),
        (form().replace(b"name=", b"x" * 9_000 + b"="), "multipart/form-data; boundary=B", 400),
        (
            form().replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n", 1),
            "multipart/form-data; boundary=B",
            415,
        ),
    ],
)
def test_what_is_no_form_with_one_file_is_refused(given: bytes, kind: str, status: int):
    with pytest.raises(Refusal) as refused:
        asyncio.run(file_of(upload(given, kind=kind)))
    assert refused.value.status == status


def test_what_is_too_large_is_read_to_its_end_and_not_kept():
    read: list[int] = []

    async def receive() -> dict[str, Any]:
        read.append(1)
        return {"type": "http.request", "body": b"x" * 1_000_000, "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(Refusal, match="larger than 10 bytes"):
        asyncio.run(route.content(request, 10))
    assert len(read) == 2 + route.DISCARDED_MOST // 1_000_000
