"""The places of the embedded server: its folders, its socket, its locks.

<home>/run/         mode 0700: socket, locks, pid, log
<home>/redis-7/     mode 0700: what servers of that flavour and major version wrote
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.errors import RedisUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

SOCKET_PATH_MAX = 103 if sys.platform == "darwin" else 107
"""Bytes of a unix socket's path; a longer one cannot be bound."""

_SHORTEST = "/tmp"  # noqa: S108 - `make_private` checks the owner of the folder there
_PRIVATE = 0o700


@dataclass(frozen=True, slots=True)
class Home:
    """The folders and files of one data home."""

    home: Path

    @property
    def run(self) -> Path:
        """Returns the private folder of the socket, the locks, the pid and the log."""
        return self.home / "run"

    @property
    def alive(self) -> Path:
        """Returns the lock that the server process holds while it lives."""
        return self.run / "alive.lock"

    @property
    def pid(self) -> Path:
        """Returns the file that names the server's process, for people."""
        return self.run / "server.pid"

    @property
    def log(self) -> Path:
        """Returns the log of the server since its last start."""
        return self.run / "server.log"

    @property
    def socket(self) -> Path:
        """Returns the socket's path: in the home, or, if that is too long, as the start noted."""
        near = self.run / "redis.sock"
        if _fits(near):
            return near
        with contextlib.suppress(FileNotFoundError):
            return Path(os.fsdecode(self._note.read_bytes()))
        return self._far_socket()

    @property
    def _note(self) -> Path:
        return self.run / "socket-path"

    def _far_socket(self) -> Path:
        """Returns a short path that is always the same for this user and home."""
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]
        folder = f"fairlane-{os.geteuid()}-{digest}"
        near = Path(tempfile.gettempdir(), folder, "redis.sock")
        return near if _fits(near) else Path(_SHORTEST, folder, "redis.sock")

    def is_ours(self) -> bool:
        """Returns whether this user owns the socket's folder: no other user may answer there."""
        try:
            facts = self.socket.parent.lstat()
        except FileNotFoundError:
            return False
        return _is_own_folder(facts)

    def prepare(self) -> None:
        """Makes the folders, for this user only."""
        self.home.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        make_private(self.run)

    def settle_socket(self) -> Path:
        """Decides where the next server's socket is; only under the start lock."""
        if _fits(self.run / "redis.sock"):
            return self.socket
        far = self._far_socket()
        make_private(far.parent)
        fresh = self._note.with_suffix(".new")
        fresh.write_bytes(os.fsencode(far))
        fresh.replace(self._note)
        return far


def find_place(data_home: Path | None) -> Home:
    """Returns the place named by the caller, FAIRLANE_HOME or the platform's convention."""
    named = data_home or os.environ.get("FAIRLANE_HOME")
    if named:
        return Home(Path(named).expanduser().absolute())
    if sys.platform == "darwin":
        return Home(Path.home() / "Library" / "Application Support" / "fairlane")
    shared = Path(os.environ.get("XDG_DATA_HOME", ""))
    base = shared if shared.is_absolute() else Path.home() / ".local" / "share"
    return Home(base / "fairlane")


def is_first_use_today(data_home: Path | None = None) -> bool:
    """Returns True once a day, after the server was started.

    The time of change of a file holds the day. If it cannot be written, each use is the first.
    """
    mark = find_place(data_home).run / "noticed"
    today = dt.date.today()  # noqa: DTZ011  the local day of the notice's reader
    with contextlib.suppress(OSError):
        if dt.date.fromtimestamp(mark.stat().st_mtime) == today:  # noqa: DTZ012  likewise
            return False
    with contextlib.suppress(OSError):
        mark.touch(mode=0o600)
    return True


def _fits(socket: Path) -> bool:
    return len(os.fsencode(socket)) <= SOCKET_PATH_MAX


def make_private(folder: Path) -> None:
    """Makes a folder that only this user can enter; refuses one of another user."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=_PRIVATE)
    facts = check_own(folder)
    if stat.S_IMODE(facts.st_mode) != _PRIVATE:
        folder.chmod(_PRIVATE)


def check_own(folder: Path) -> os.stat_result:
    """Returns the facts of a folder. Raises RedisUnfit if it is another user's, or no folder."""
    facts = folder.lstat()
    if not _is_own_folder(facts):
        message = f"{folder} is not a folder of this user: remove it, or set FAIRLANE_HOME"
        raise RedisUnfit(message)
    return facts


def _is_own_folder(facts: os.stat_result) -> bool:
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Holds an advisory lock; never unlocked explicitly, because a child may have inherited it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
