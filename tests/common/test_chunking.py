"""Tests the chunker: it takes any iterable, and holds one chunk in memory at most."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.common.chunking import chunks, chunks_async
from fairlane.errors import InvalidArgument
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

MIB = 1 << 20


async def collect(bodies: object) -> list[list[bytes]]:
    return [chunk async for chunk in chunks_async(bodies)]  # type: ignore[arg-type]


async def one_by_one(bodies: Iterable[bytes]) -> AsyncIterator[bytes]:
    for body in bodies:
        yield body


@given(st.lists(st.sampled_from([0, 1, 900, 300_000, MIB - 1, MIB]), max_size=40))
def test_no_chunk_is_over_a_thousand_or_a_mebibyte(sizes: list[int]):
    bodies = [b"x" * size for size in sizes]
    found = list(chunks(bodies))
    assert [body for chunk in found for body in chunk] == bodies
    assert all(0 < len(chunk) <= 1000 for chunk in found)
    assert all(sum(map(len, chunk)) <= MIB for chunk in found)


@for_each(
    "count, wanted",
    [(0, []), (1, [1]), (1000, [1000]), (1001, [1000, 1]), (2500, [1000, 1000, 500])],
)
def test_chunks_are_as_full_as_they_may_be(count: int, wanted: list[int]):
    assert [len(chunk) for chunk in chunks(b"x" for _ in range(count))] == wanted


def test_the_chunker_is_flat_in_memory():
    tracemalloc.start()
    try:
        for chunk in chunks(b"%d" % i * 10_000 for i in range(4_000)):
            assert chunk
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * MIB


def test_text_becomes_utf8():
    assert list(chunks(["ü", b"\xff"])) == [["ü".encode(), b"\xff"]]
    with pytest.raises(InvalidArgument, match="1,048,578 bytes"):
        list(chunks(["ü" * (MIB // 2 + 1)]))


def test_the_async_chunker_makes_the_same_chunks():
    bodies = [b"x" * (i % 7) for i in range(2_300)]
    wanted = list(chunks(bodies))
    assert asyncio.run(collect(bodies)) == wanted
    assert asyncio.run(collect(one_by_one(bodies))) == wanted


@for_each("bodies", ["text", b"bytes", bytearray(b"x"), {"a": 1}, 7, None])
def test_what_is_no_iterable_of_bodies_is_named(bodies: object):
    """A str would be one sub-request for each letter."""
    with pytest.raises(InvalidArgument, match=type(bodies).__name__):
        list(chunks(bodies))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=type(bodies).__name__):
        asyncio.run(collect(bodies))


@for_each("body", [None, 7, bytearray(b"x"), memoryview(b"x"), ["x"]])
def test_a_body_that_is_neither_bytes_nor_str_is_named_by_its_index(body: object):
    bodies = [b"a", b"b", body]
    with pytest.raises(InvalidArgument, match="sub-request 2 is a"):
        list(chunks(bodies))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="sub-request 2 is a"):
        asyncio.run(collect(one_by_one(bodies)))  # type: ignore[arg-type]
