"""Tests that the blocking face is the one that follows from the asyncio face."""

from __future__ import annotations

from tests.support import faces
from tests.support.run.for_each import for_each

ASYNCIO = '''"""A page of the asyncio API."""
from collections.abc import AsyncIterator

from fairlane.aio.request import Request
from fairlane.common.chunking import Bodies, Body, chunks_async
from fairlane.drivers.aio import AsyncDriver


class AsyncPage:  # blocking: class Page(Sized):
    """`await page.read()`, or `async with` it. Any task may use AsyncPage."""

    def __init__(self, driver: AsyncDriver, text: str = "an async await") -> None:
        self.driver, self.text = driver, text

    def __await__(self) -> None:  # asyncio only
        """Reads it."""

    async def read(self, bodies: Bodies, wait: int) -> AsyncIterator[int]:  # noqa: ASYNC109  why
        async for chunk in chunks_async(bodies):
            for body in chunk:
                yield body
        async with self as page:  # waits here
            yield await page.one(f"{self.text} await")

    async def one(self, body: Body) -> "AsyncPage":
        # blocking: print(body)
        return self
'''
BLOCKING = '''"""A page of the blocking API."""
from collections.abc import Iterator

from fairlane.request import Request
from fairlane.common.chunking import Body, Body, chunks
from fairlane.drivers.sync import SyncDriver


class Page(Sized):
    """`page.read()`, or `with` it. Any thread may use Page."""

    def __init__(self, driver: SyncDriver, text: str = "an async await") -> None:
        self.driver, self.text = driver, text


    def read(self, bodies: Iterable[Body], wait: int) -> Iterator[int]:
        for chunk in chunks(bodies):
            yield from chunk
        with self as page:  # waits here
            yield page.one(f"{self.text} await")

    def one(self, body: Body) -> "Page":
        print(body)
        return self
'''


@for_each("source", faces.FACES)
def test_the_blocking_face_is_generated(source: str):
    """`make generate` writes it."""
    assert faces.blocking(source) == (faces.SRC / faces.FACES[source]).read_text()


def test_tokens_and_marks_are_translated():
    assert faces.translated(ASYNCIO) == BLOCKING
