"""Chooses the data that the embedded server serves: a folder for each flavour and major version.

A server that reads data of a newer version may start without any of it, so such data are refused.
Data of an older version are copied to the newer server's own folder. Valkey reads what Redis up to
7.2 wrote; no Redis reads what Valkey wrote.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlane.embedded.find_server import fit_servers
from fairlane.embedded.home import check_own, make_private
from fairlane.errors import RedisUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairlane.embedded.find_server import ServerBinary

_DATA_FOLDER = re.compile(r"(redis|valkey)-(\d+)")
_HEAD = re.compile(rb"REDIS(\d{4})")
_VALKEY_READS = (7, 11)
"""The newest Redis whose data Valkey reads, 7.2: its major version and its files' format."""


@dataclass(frozen=True, slots=True, order=True)
class _Data:
    """A folder of one flavour and major version that holds data."""

    major: int
    flavour: str
    folder: Path


def _data_in(home: Path) -> list[_Data]:
    """Returns what servers have written here, the oldest version first.

    Raises RedisUnfit if a folder is another user's: its data are not served.
    """
    found = []
    for folder in home.iterdir():
        match = _DATA_FOLDER.fullmatch(folder.name)
        if not match:
            continue
        check_own(folder)
        if any(_data_files(folder)):
            found.append(_Data(int(match[2]), match[1], folder))
    return sorted(found)


def _data_files(folder: Path) -> Iterator[Path]:
    yield from folder.glob("appendonly*")
    yield from folder.glob("*.rdb")


def choose(home: Path) -> tuple[ServerBinary, Path]:
    """Picks the newest server that can read the newest data, and the folder it will serve."""
    servers = fit_servers()
    written = _data_in(home)
    newest = written[-1] if written else None
    if newest is not None:
        servers = [server for server in servers if server.flavour == newest.flavour] or servers
    server = servers[0]
    folder = home / f"{server.flavour}-{server.version[0]}"
    if newest is not None and newest.folder != folder:
        if not _can_read(server, newest):
            raise RedisUnfit(_why_unreadable(server, newest))
        _carry_over(newest.folder, folder)
    make_private(folder)
    return server, folder


def _can_read(server: ServerBinary, data: _Data) -> bool:
    """Returns whether this server reads data of another flavour or major version."""
    if data.flavour == server.flavour:
        return data.major < server.version[0]
    return server.flavour == "valkey" and (data.major, _format(data.folder)) <= _VALKEY_READS


def _format(folder: Path) -> int:
    """Returns the newest format of Redis's that the files in a folder have; 0 = none has any."""
    newest = 0
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                head = _HEAD.match(file.read(9))
            newest = max(newest, int(head[1]) if head else 0)
    return newest


def _why_unreadable(server: ServerBinary, data: _Data) -> str:
    writer = f"{data.flavour.capitalize()} {data.major}"
    return (
        f"{data.folder} was written by {writer}, which {server} ({server.path}) cannot read:"
        f" install {writer} or newer, or set FAIRLANE_HOME to another folder"
    )


def _carry_over(old: Path, new: Path) -> None:
    """Copies the data of an older server to the folder of a newer one, all of it or nothing."""
    part = new.with_name(f"{new.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    make_private(part)
    for path in _data_files(old):
        if path.is_dir():
            shutil.copytree(path, part / path.name)
        else:
            shutil.copy2(path, part / path.name)
    part.replace(new)
