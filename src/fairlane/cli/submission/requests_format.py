"""`--format requests`: every line `limit:sub:sub:...` is a request, `#` begins a comment.

Blank lines are skipped. A sub-request may be empty and cannot contain a colon. The whole file is
checked, naming the line, before the first request is submitted.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from fairlane.cli.submission.input_lines import BLOCK, Source
from fairlane.errors import InvalidArgument
from fairlane.options import MAX_LIMIT
from fairlane.settings import MAX_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_LINE = 64 << 20  # one line is one request: more than one sub-request's size
IN_MEMORY = 16 << 20  # bytes of a pipe kept in memory, because it must be read twice; then a file


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One line: a request's limit and its sub-requests."""

    number: int
    limit: int
    bodies: list[bytes]


@contextmanager
def rereadable(source: Source) -> Iterator[Source]:
    """Yields the source if it is a file; else a temporary file with its content."""
    if source.is_file:
        yield source
        return
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as copy:
        shutil.copyfileobj(source.stream, copy, BLOCK)
        yield Source(source.name, cast("BinaryIO", copy), is_file=True)


def request_lines(source: Source) -> Iterator[RequestLine]:
    """Yields the requests of a file. Raises InvalidArgument, naming the line."""
    lines = itertools.chain.from_iterable(source.blocks(LONGEST_LINE))
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith(b"#"):
            yield _parse(line, number, source.name)


def _parse(line: bytes, number: int, name: str) -> RequestLine:
    limit, *bodies = line.split(b":")
    where = f"line {number} of {name}"
    if not bodies or not limit.isdigit():
        raise InvalidArgument(
            f"{where} is not a request: limit:sub-request:sub-request:... is expected"
        )
    if len(limit) > len(str(MAX_LIMIT)) or not 1 <= int(limit) <= MAX_LIMIT:
        raise InvalidArgument(
            f"{where} has the limit {limit[:20].decode()}: 1 to {MAX_LIMIT:,} is expected"
        )
    if max(map(len, bodies)) > MAX_BODY:
        raise InvalidArgument(
            f"{where} has a sub-request of more than {MAX_BODY:,} bytes, the most it may have"
        )
    return RequestLine(number, int(limit), bodies)
