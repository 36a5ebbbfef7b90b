"""The file of `--out` or `--svg`: it appears complete, or not at all.

It is written as a hidden file beside the final one, and renamed at the end. So no reader takes an
incomplete file for a complete one. The hidden name is unique, so two commands with the same --out
share nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fairlane.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

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
