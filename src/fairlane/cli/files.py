"""The files that commands read, and the files that they write."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fairlane.cli.output import note
from fairlane.errors import InvalidArgument
from fairlane.settings import MAX_BODY

# ------------------------------------------------------------------ input
# The lines of a FILE, or of standard input.


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


# ------------------------------------------------------------------ atomic file
# The file of `--out` or `--svg`: it appears complete, or not at all.
#
# It is written as a hidden file beside the final one, and renamed at the end. So no reader takes
# an incomplete file for a complete one. The hidden name is unique, so two commands with the same
# --out share nothing.


BUFFER = 1 << 18
MOST_LINKS = 40
NAME_KEPT = 50  # characters of the final name in the hidden one: a name has at most 255 bytes
NEW_MODE = 0o666  # less the umask


@contextmanager
def open_results(name: str | None, option: str = "--out") -> Iterator[BinaryIO | None]:
    """Yields a file that is renamed to `name` at the end, unless an error occurs; None for no name.

    Raises InvalidArgument immediately if it cannot be written.
    """
    if name is None:
        yield None
        return
    try:
        target, before = _find(name)
        part, stream = _open_beside(target, before)
    except InvalidArgument:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(f"{option} {name} cannot be written: {reason.lower()}") from None
    try:
        with stream:
            yield stream
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _find(name: str) -> tuple[Path, os.stat_result | None]:
    """Returns the file that `name` leads to, and its stat result.

    Raises InvalidArgument, OSError, ValueError.
    """
    target = Path(os.path.realpath(name))
    try:
        facts = target.stat()
    except FileNotFoundError:
        facts = None
    if facts is not None and stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(0, "it is a directory")
    if _names_a_stream(Path(name)) or (facts is not None and not stat.S_ISREG(facts.st_mode)):
        raise InvalidArgument(
            f"--out {name} is not a regular file: fairlane results ID prints the results "
            "to standard output"
        )
    if facts is not None and not (facts.st_mode & 0o222 and os.access(target, os.W_OK)):
        raise PermissionError(0, "it is read-only")
    return target, facts


def _names_a_stream(path: Path) -> bool:
    """Returns True for /dev/stdout, /dev/fd/3, /proc/self/fd/1 and links to them.

    They may lead to a regular file: the one that standard output goes to.
    """
    for _ in range(MOST_LINKS):
        folder = Path(os.path.realpath(path.parent))
        if folder == Path("/dev") or any(
            folder.is_relative_to(place) for place in ("/dev/fd", "/proc")
        ):
            return True
        path = folder / path.name
        if not path.is_symlink():
            return False
        path = folder / path.readlink()
    return False


def _open_beside(target: Path, before: os.stat_result | None) -> tuple[Path, BinaryIO]:
    """Creates a file in the folder of `target`, with the owner and permissions of `before`."""
    from secrets import token_hex

    part = target.with_name(f".{target.name[:NAME_KEPT]}.{token_hex(6)}")
    mode = NEW_MODE if before is None else stat.S_IRUSR | stat.S_IWUSR
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    if before is not None:
        with suppress(OSError):  # only root may give a file away
            os.fchown(descriptor, before.st_uid, before.st_gid)
        os.fchmod(descriptor, before.st_mode & 0o777)
    return part, os.fdopen(descriptor, "wb", buffering=BUFFER)
