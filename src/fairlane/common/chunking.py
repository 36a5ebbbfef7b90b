"""Cuts any iterable of bodies into chunks that one script call may carry."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from itertools import chain

from fairlane.errors import InvalidArgument, type_of
from fairlane.settings import CHUNK_BYTES, CHUNK_ENTRIES, MAX_BODY

Body = bytes | str
Bodies = Iterable[Body] | AsyncIterable[Body]  # what an asyncio caller may submit


class Chunker:
    """Collects bodies; `add` returns each full chunk, `rest` the last one."""

    def __init__(self) -> None:
        self._chunk: list[bytes] = []
        self._size = 0
        self.count = 0

    def add(self, body: Body) -> list[bytes] | None:
        """Adds one body (text becomes UTF-8); returns the chunk before it if that is full."""
        if isinstance(body, str):
            try:
                body = body.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"sub-request {self.count} is not text: {error}") from None
        elif not isinstance(body, bytes):
            raise InvalidArgument(
                f"sub-request {self.count} is {type_of(body)}: bytes or str is expected"
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
        """Returns the bodies after the last full chunk, or None, and begins a new chunk."""
        rest, self._chunk, self._size = self._chunk, [], 0
        return rest or None

    def cut(self, bodies: Iterable[Body]) -> Iterator[list[bytes]]:
        """Yields the chunks of these bodies, the last one also when it is not full."""
        _check_iterable(bodies)
        for body in bodies:
            full = self.add(body)
            if full:
                yield full
        rest = self.rest()
        if rest:
            yield rest


def chunks(bodies: Iterable[Body]) -> Iterator[list[bytes]]:
    """Yields chunks of at most 1,000 bodies and 1 MiB, one at a time. Raises InvalidArgument."""
    return Chunker().cut(bodies)


def chunks_of_groups(groups: Iterable[Iterable[Body]]) -> Iterator[list[bytes]]:
    """Yields chunks that end where a group of bodies ends. Raises InvalidArgument."""
    _check_iterable(groups)
    return chain.from_iterable(map(Chunker().cut, groups))


async def chunks_async(bodies: Bodies) -> AsyncIterator[list[bytes]]:
    """Yields the same chunks from an async iterable (or an ordinary one)."""
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


async def chunks_of_groups_async(
    groups: Iterable[Iterable[Body]] | AsyncIterable[Iterable[Body]],
) -> AsyncIterator[list[bytes]]:
    """Yields the same chunks from an async iterable of groups (or an ordinary one)."""
    if not isinstance(groups, AsyncIterable):
        for chunk in chunks_of_groups(groups):
            yield chunk
        return
    chunker = Chunker()
    async for bodies in groups:
        for chunk in chunker.cut(bodies):
            yield chunk


def one_chunk(bodies: object) -> list[bytes] | None:
    """Returns a short list or tuple of bodies as one chunk; None for anything else."""
    if not isinstance(bodies, (list, tuple)) or len(bodies) > CHUNK_ENTRIES:
        return None
    size, found = 0, []
    for body in bodies:
        if isinstance(body, str):
            try:
                body = body.encode()  # noqa: PLW2901
            except UnicodeEncodeError:
                return None
        elif not isinstance(body, bytes):
            return None
        found.append(body)
        size += len(body)
    return found if size <= min(CHUNK_BYTES, MAX_BODY) else None


def split(bodies: Iterable[Body]) -> tuple[list[bytes] | None, Iterator[list[bytes]] | None]:
    """Returns the only chunk of a small request and None; of a larger one None and all its chunks.

    Raises InvalidArgument.
    """
    chunk = one_chunk(bodies)
    if chunk is not None:
        return chunk, None
    cut = chunks(bodies)
    first: list[bytes] = next(cut, [])
    following = next(cut, None)
    return (first, None) if following is None else (None, chain((first, following), cut))


async def split_async(
    bodies: Bodies,
) -> tuple[list[bytes] | None, AsyncIterator[list[bytes]] | None]:
    """Returns the same as `split`, for an async iterable (or an ordinary one)."""
    if not isinstance(bodies, AsyncIterable):
        chunk, rest = split(bodies)
        return chunk, None if rest is None else _awaited(rest)
    cut = chunks_async(bodies)
    first: list[bytes] = await anext(cut, [])
    following = await anext(cut, None)
    return (first, None) if following is None else (None, _awaited((first, following), cut))


async def _awaited(
    first: Iterable[list[bytes]], rest: AsyncIterator[list[bytes]] | None = None
) -> AsyncIterator[list[bytes]]:
    for chunk in first:
        yield chunk
    if rest is not None:
        async for chunk in rest:
            yield chunk


def _check_iterable(bodies: object) -> None:
    if isinstance(bodies, (str, bytes, bytearray, dict)) or not isinstance(bodies, Iterable):
        raise InvalidArgument(
            f"bodies is {type_of(bodies)}: an iterable of bytes or str is expected, "
            "one for each sub-request"
        )
