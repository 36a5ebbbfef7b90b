"""The content of a call is read within bounds of time and size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request

from fairlane.web.endpoint import reading
from fairlane.web.endpoint.problem import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def call(*given: bytes, ends: bool = True) -> Request:
    """A call whose content comes in these parts; without an end it goes quiet."""
    parts = list(given)

    async def receive() -> dict[str, Any]:
        if not parts and not ends:
            await asyncio.Event().wait()
        body = parts.pop(0) if parts else b""
        return {"type": "http.request", "body": body, "more_body": bool(parts) or not ends}

    return Request({"type": "http", "method": "POST", "headers": []}, receive)


async def lines_of(request: Request) -> list[bytes]:
    return [line async for line in reading.lines(request)]


@pytest.mark.parametrize("read", [reading.content, lines_of])
def test_a_caller_that_goes_quiet_is_refused(
    read: Callable[[Request], Coroutine[Any, Any, Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reading, "CHUNK_S", 0.01)
    with pytest.raises(Refusal, match="nothing came for") as refused:
        asyncio.run(read(call(b"a", ends=False)))
    assert refused.value.status == 408


def test_lines_are_cut_wherever_the_parts_end():
    whole = b"one\r\ntwo\n\n\nthree"
    for at in range(1, len(whole)):
        assert asyncio.run(lines_of(call(whole[:at], whole[at:]))) == [b"one", b"two", b"three"]


def test_what_is_too_large_is_read_to_its_end_and_not_kept():
    read: list[int] = []

    async def receive() -> dict[str, Any]:
        read.append(1)
        return {"type": "http.request", "body": b"x" * 1_000_000, "more_body": True}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(Refusal, match="larger than 10 bytes"):
        asyncio.run(reading.content(request, 10))
    assert len(read) == 2 + reading.DISCARDED_MOST // 1_000_000
