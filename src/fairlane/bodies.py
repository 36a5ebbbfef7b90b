"""Cuts any iterable of bodies into chunks that one script call may carry."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

from .errors import InvalidArgument
from .settings import CHUNK_BYTES, CHUNK_ENTRIES, MAX_BODY

Body = bytes | str


class Chunker:
    """Collects bodies; a full chunk comes out of `add`, the last one out of `rest`."""

    def __init__(self) -> None:
        self._chunk: list[bytes] = []
        self._size = 0
        self.count = 0

    def add(self, body: Body) -> list[bytes] | None:
        """Takes one body (text becomes UTF-8); returns the chunk before it when that is full."""
        if isinstance(body, str):
            try:
                body = body.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"sub-request {self.count} is not text: {error}") from None
        elif not isinstance(body, bytes):
            raise InvalidArgument(
                f"sub-request {self.count} is a {type(body).__name__}: bytes or str is expected"
            )
        size = len(body)
        if size > MAX_BODY:
            raise InvalidArgument(
                f"sub-request {self.count} has {size:,} bytes: the most is {MAX_BODY:,}"
            )
        self.count += 1
        if self._size + size > CHUNK_BYTES or len(self._chunk) == CHUNK_ENTRIES:
            full, self._chunk, self._size = self._chunk, [body], size
            return full
        self._chunk.append(body)
        self._size += size
        return None

    def rest(self) -> list[bytes] | None:
        """What is left at the end, or None."""
        return self._chunk or None


def chunks(bodies: Iterable[Body]) -> Iterator[list[bytes]]:
    """Chunks of at most 1,000 bodies and 1 MiB, one at a time. Raises InvalidArgument."""
    _check_iterable(bodies)
    chunker = Chunker()
    for body in bodies:
        full = chunker.add(body)
        if full:
            yield full
    last = chunker.rest()
    if last:
        yield last


async def chunks_async(bodies: Iterable[Body] | AsyncIterable[Body]) -> AsyncIterator[list[bytes]]:
    """The same from an async iterable (or an ordinary one)."""
    if not isinstance(bodies, AsyncIterable):
        for chunk in chunks(bodies):
            yield chunk
        return
    chunker = Chunker()
    async for body in bodies:
        full = chunker.add(body)
        if full:
            yield full
    last = chunker.rest()
    if last:
        yield last


def _check_iterable(bodies: object) -> None:
    if isinstance(bodies, (str, bytes, bytearray, dict)) or not isinstance(bodies, Iterable):
        raise InvalidArgument(
            f"bodies is a {type(bodies).__name__}: an iterable of bytes or str is expected, "
            "one for each sub-request"
        )
