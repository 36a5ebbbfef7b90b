"""The manifest of an archive: which files count, and how far each queue is archived.

A commit replaces `manifest.json` by a rename. So a reader finds the old manifest or the new one,
and every file that it lists: files that a commit takes off the list stay for GRACE_MS.
A file that no manifest lists is part of a commit that was not finished.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from fairlane.errors import InvalidArgument
from fairlane.operations.completion import is_place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

NAME = "manifest.json"
TABLES = ("requests", "results", "dead")
GRACE_MS = 3_600_000  # a reader that holds an older manifest finds its files for so long
_FORMAT = "fairlane archive 1"
_LOCK = ".lock"
ASIDE = "unlisted"  # the folder of files that a commit may have left, or an old manifest lacks
_log = logging.getLogger(__name__)
_PATH = re.compile(r"(?:requests|results|dead)/queue=[\w.:-]+/date=[\d-]+/(\d+)\.parquet")


Place = Annotated[str, msgspec.Meta(pattern=r"^\d{1,20}-\d{1,20}$")]
Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.:-]+$")]


class File(msgspec.Struct, frozen=True):
    """Describes a Parquet file; `first` and `last` are the log ids of its endings.

    `batches`: from how many batches its rows are.
    """

    path: str
    table: str
    queue: str
    date: str
    rows: int
    bytes: int
    first: Place
    last: Place
    batches: int = 1


class Position(msgspec.Struct, frozen=True):
    """Holds the last ending of a queue that is archived, and how many rows there were in all.

    `removed`: how many endings had left the log before the archive began with the queue.
    """

    place: Place
    removed: int
    requests: int = 0
    results: int = 0
    dead: int = 0
    missing: int = 0


class _Form(msgspec.Struct, frozen=True):
    format: str


class Manifest(_Form, frozen=True):
    """Holds one generation of an archive; `retired` has paths, each with its end in ms."""

    generation: int
    reader: str
    queues: dict[Name, Position]
    files: list[File]
    retired: dict[str, int]


def read(folder: Path) -> Manifest:
    """Returns the manifest of an archive. Raises InvalidArgument."""
    try:
        text = (folder / NAME).read_bytes()
    except FileNotFoundError:
        if any((folder / table).exists() for table in TABLES):
            raise InvalidArgument(
                f"{folder / NAME} is missing: restore it from a copy, or name another folder"
            ) from None
        raise InvalidArgument(f"{folder} is no archive of a queue: it has no {NAME}") from None
    except OSError as error:
        raise InvalidArgument(f"{folder / NAME} cannot be read: {error.strerror}") from None
    try:
        form = msgspec.json.decode(text, type=_Form).format
        if form != _FORMAT:
            raise InvalidArgument(
                f"{folder / NAME} is of another version of Fairlane ({form}): use that version"
            )
        found = msgspec.json.decode(text, type=Manifest)
        if wrong := _contradiction(found):
            raise InvalidArgument(f"{folder / NAME} is wrong about {wrong}: restore it from a copy")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument(
            f"{folder / NAME} is torn or no manifest: restore it from a copy"
        ) from None
    return found


def _contradiction(found: Manifest) -> str:
    """Returns what cannot be in a manifest of this package; "" if all can."""
    if found.generation < 0:
        return f"generation {found.generation}"
    seen = {*found.retired}
    for path in found.retired:
        match = _PATH.fullmatch(path)
        if match is None or int(match[1]) > found.generation:
            return path
    for file in found.files:
        match = _PATH.fullmatch(file.path)
        if (
            match is None
            or int(match[1]) > found.generation
            or file.path != path_of(file.table, file.queue, file.date, int(match[1]))
            or file.path in seen
            or min(file.rows, file.bytes, file.batches) < 0
            or not (is_place(file.first) and is_place(file.last))
        ):
            return file.path
        if file.queue not in found.queues:
            return f"queue {file.queue}"
        seen.add(file.path)
    for queue, position in found.queues.items():
        if not is_place(position.place):
            return f"queue {queue}"
    return ""


def path_of(table: str, queue: str, date: str, generation: int) -> str:
    """Returns the path of a file that a commit adds to a partition."""
    return f"{table}/queue={queue}/date={date}/{generation:08}.parquet"


def why_unreadable(folder: Path, file: File) -> str:
    """Returns a sentence about a file that is not as the manifest lists it; "" if it is."""
    path = folder / file.path
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        if file in read(folder).files:
            return f"{path} is missing: restore it from a copy"
        return f"{path} was replaced while it was read: repeat the command"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return "" if size == file.bytes else torn(path)


def torn(path: Path) -> str:
    """Returns a sentence about a file that holds no Parquet."""
    return f"{path} is torn or no Parquet file: restore it from a copy"


@contextmanager
def open_archive(folder: Path, reader: str) -> Iterator[Archive]:
    """Opens an archive to write to it, also a new one, whose name as a reader of logs is `reader`.

    Raises InvalidArgument, also while another program has it open.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument(
                f"{folder} is written by another archiver: stop that one, or name another folder"
            ) from None
        except OSError as error:
            raise InvalidArgument(
                f"{folder / _LOCK} cannot be locked: {error.strerror}. Name a folder of "
                "another file system"
            ) from None
        try:
            archive = Archive(folder, reader)
        except OSError as error:
            raise InvalidArgument(f"{folder} cannot be written: {error.strerror}") from None
        yield archive
    finally:
        os.close(lock)


class Archive:
    """Writes to an archive. Only one object does, because it holds the lock."""

    manifest: Manifest

    def __init__(self, folder: Path, reader: str) -> None:
        self.folder = folder
        if any((folder / name).exists() for name in (NAME, *TABLES)):
            self.manifest = read(folder)
        else:  # the first manifest is before the first file
            self._write(Manifest(_FORMAT, 0, reader, {}, [], {}))
        self.clear()
        self._set_aside()

    def path(self, table: str, queue: str, date: str) -> str:
        """Returns the path of the next commit's file in a partition."""
        return path_of(table, queue, date, self.manifest.generation + 1)

    def temporary(self, path: str) -> Path:
        """Returns where a file is until its commit."""
        return self.folder / f"{path}.tmp"

    def clear(self) -> None:
        """Removes the files that no commit has completed."""
        for there in self.folder.glob("*/queue=*/date=*/*.parquet.tmp"):
            there.unlink()

    def _set_aside(self) -> None:
        """Moves files of the next generation away. Raises InvalidArgument.

        A commit that was not finished has left them, or the manifest is one commit old. In the
        second case the archive is the only place that has their rows, so none is removed.
        """
        listed = {*(file.path for file in self.manifest.files), *self.manifest.retired}
        newer = []
        for there in self.folder.glob("*/queue=*/date=*/*.parquet"):
            path = there.relative_to(self.folder).as_posix()
            match = _PATH.fullmatch(path)
            if match is None or path in listed or int(match[1]) <= self.manifest.generation:
                continue
            if int(match[1]) > self.manifest.generation + 1:
                raise InvalidArgument(
                    f"{self.folder / NAME} is older than {there}: restore the newest manifest"
                )
            newer.append(path)
        if not newer:
            return
        aside = self.folder / ASIDE / secrets.token_hex(4)
        for path in newer:
            (aside / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).replace(aside / path)
        _log.warning(
            "%d files that %s does not list are in %s now: delete them, unless the manifest is an "
            "old one. Then restore the newest one, and move the files back",
            *(len(newer), self.folder / NAME, aside),
        )

    def commit(
        self,
        now_ms: int,
        *,
        added: Sequence[File] = (),
        removed: Collection[File] = (),
        queues: dict[str, Position] | None = None,
    ) -> None:
        """Adds files, which are complete under their temporary names, and takes others off."""
        for file in added:
            self.temporary(file.path).replace(self.folder / file.path)
        for folder in {one for file in added for one in Path(file.path).parents}:
            _sync(self.folder / folder)
        before = self.manifest
        retired = dict.fromkeys((file.path for file in removed), now_ms + GRACE_MS)
        for path, end_ms in before.retired.items():
            if end_ms > now_ms:
                retired[path] = end_ms
                continue
            (self.folder / path).unlink(missing_ok=True)
            with suppress(OSError):  # other files are in it
                (self.folder / path).parent.rmdir()
        self._write(
            msgspec.structs.replace(
                before,
                generation=before.generation + 1,
                queues=before.queues | (queues or {}),
                files=[*(file for file in before.files if file not in removed), *added],
                retired=retired,
            )
        )

    def _write(self, manifest: Manifest) -> None:
        fresh = self.folder / f".{NAME}.tmp"
        with fresh.open("wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self.folder / NAME)
        _sync(self.folder)
        self.manifest = manifest


def _sync(folder: Path) -> None:
    """Makes the names in a folder outlast a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
