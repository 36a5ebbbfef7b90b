"""Reads the lines of FILE lazily: a line ends at a newline, its bytes are kept as they are.

A last line without a newline counts, nothing after a last newline does not. A file is checked in a
first pass before anything is written; what can be read only once (a pipe) is checked as it comes.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from fairlane.cli.output import note
from fairlane.errors import (
    InvalidArgument,
)
from fairlane.settings import MAX_BODY

BLOCK = 1 << 20  # at most the longest line, so that a line inside one block is short enough
Read = Callable[[int], bytes]
Look = Callable[[int], object]  # called with how many lines have been read


@dataclass(frozen=True, slots=True)
class Source:
    """An open FILE: its name in messages, and whether it can be read twice."""

    name: str
    stream: BinaryIO
    is_file: bool

    def blocks(self, most: int = MAX_BODY) -> Iterator[list[bytes]]:
        """Yields the lines, from the beginning of a file or as a pipe brings them.

        Never holds more than a block and a line. Raises InvalidArgument for a line over `most`
        bytes or a failing read, naming the line.
        """
        if self.is_file:
            self.stream.seek(0)
            return line_blocks(self.stream.read, self.name, most)
        # read1 returns available bytes: a slow pipe's lines need not wait for a full block.
        return line_blocks(getattr(self.stream, "read1", self.stream.read), self.name, most)

    def share(self) -> float | None:
        """Returns how much of a file has been read, 0 to 1; None for a pipe."""
        size = os.fstat(self.stream.fileno()).st_size if self.is_file else 0
        return min(1.0, self.stream.tell() / size) if size else None

    def check(self, look: Look, most: int = MAX_BODY) -> None:
        """Checks a file in a first pass. Raises InvalidArgument for a line over `most` bytes."""
        self.stream.seek(0)
        line, length = 1, 0  # of the line that the blocks so far end in
        while block := _read(self.stream.read, self.name, line):
            first, last = block.find(b"\n"), block.rfind(b"\n")
            _check_length(length + (len(block) if first < 0 else first), most, self.name, line)
            if first >= 0:
                line += block.count(b"\n")
                length = 0
            length += len(block) - last - 1 if first >= 0 else len(block)
            look(line)


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Opens FILE, `-` for stdin. Raises InvalidArgument when it cannot be read."""
    if path == "-":
        yield _stdin()
        return
    try:
        stream = open(path, "rb", buffering=BLOCK)  # noqa: SIM115, PTH123  closed below; a path may be no text
    except IsADirectoryError:
        raise InvalidArgument(
            f"{path} is a directory: a file with one sub-request a line is expected"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read: {_reason(error)}") from None
    with stream:
        yield Source(path, stream, is_file=_is_file(stream))


def _stdin() -> Source:
    if sys.stdin is None:
        raise InvalidArgument("- is standard input, which is closed")
    if sys.stdin.isatty():
        note("reading sub-requests from the terminal, one a line; Ctrl-D ends")
    return Source("standard input", sys.stdin.buffer, is_file=False)


def _is_file(stream: BinaryIO) -> bool:
    return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)


def line_blocks(read: Read, name: str, most: int = MAX_BODY) -> Iterator[list[bytes]]:
    """Yields the lines of each block that `read` returns, as a list."""
    number = 1  # of the line that begins `parts`
    parts: list[bytes] = []
    held = 0
    while block := _read(read, name, number):
        first, *rest = block.split(b"\n")
        held += len(first)
        _check_length(held, most, name, number)
        parts.append(first)
        if not rest:
            continue
        last = rest.pop()
        lines = [b"".join(parts), *rest]
        yield lines
        number += len(lines)
        parts, held = [last], len(last)
    if held:
        yield [b"".join(parts)]


def _check_length(length: int, most: int, name: str, number: int) -> None:
    if length > most:
        raise InvalidArgument(
            f"line {number} of {name} has more than {most:,} bytes, the most a line may have"
        )


def _read(read: Read, name: str, number: int) -> bytes:
    try:
        return read(BLOCK)
    except OSError as error:
        raise InvalidArgument(f"{name} cannot be read at line {number}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()
