"""Tests the embedded server: started once, shared, private, and without a risk to its data."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket as sockets
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import redis

from fairlane import embedded
from fairlane.embedded import ServerBinary, server
from fairlane.embedded import home as place_module
from fairlane.embedded.home import find_place
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.queue import Queue
from tests.support.servers.server_process import find_bundled, find_system_redis, run_server
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.embedded.server import ServerStatus

    Choose = Callable[[str], ServerBinary]

pytestmark = pytest.mark.server

RACERS = 6

CHILD = """
import sys
from pathlib import Path
from fairlane import embedded
print("here", flush=True)
sys.stdin.readline()
embedded.ensure(Path(sys.argv[1]))
print(embedded.status(Path(sys.argv[1])).pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("is_far", [False, True])
def test_the_error_of_a_stopped_server_names_the_command_to_start_it(is_far: bool, tmp_path: Path):
    """Its path may be too long for a socket, which is elsewhere then."""
    home = tmp_path / ("long" * 30 if is_far else "home")
    url = embedded.ensure(home)
    with Queue.from_url(url, patience_s=0) as queue:
        queue.status()
        assert embedded.stop(home)
        for _ in range(2):  # the connection is cut, then the socket is missing
            with pytest.raises(RedisUnreachable, match="`fairlane server start` starts it"):
                queue.status()


@pytest.mark.parametrize("path", ["/run/redis.sock", "/var/run/redis.sock", "/srv/redis.sock"])
def test_the_error_of_another_socket_names_no_embedded_server(path: str):
    with (
        Queue.from_url(f"unix://{path}", patience_s=0) as queue,
        pytest.raises(RedisUnreachable, match="is it running"),
    ):
        queue.status()


class Child:
    """Another process, which starts or finds the embedded server when a line comes."""

    def __init__(self, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(home)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._line() == "here"

    def go(self) -> None:
        """Lets it start or find the server; `answer` reads the result."""
        assert self.process.stdin
        self.process.stdin.write("go\n")

    def answer(self) -> int:
        """The pid of the server that it found."""
        return int(self._line())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A data home whose server ends with the test."""
    folder = tmp_path / "home"
    yield folder
    end_server(folder)


@pytest.fixture
def start_child(home: Path) -> Iterator[Callable[..., Child]]:
    """Starts other processes that share a home; they are ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(folder: Path = home) -> Child:
            child = Child(folder)
            stack.callback(child.kill)
            return child

        yield start


def end_server(folder: Path) -> None:
    """Ends the server of a home, even one that a test has made unreachable."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        pid = int(find_place(folder).pid.read_text())
        if embedded.status(folder) is None:
            assert not folder_is_served(folder), f"the test left server {pid} behind"
    embedded.stop(folder)


def folder_is_served(folder: Path) -> bool:
    """Returns True if a process holds the home's data."""
    return server._is_alive(find_place(folder))


def connect(folder: Path) -> redis.Redis:
    return redis.Redis.from_url(embedded.ensure(folder), decode_responses=True)


def remember(folder: Path, value: str) -> None:
    with contextlib.closing(connect(folder)) as client:
        client.set("what", value)


def recall(folder: Path) -> object:
    with contextlib.closing(connect(folder)) as client:
        return client.get("what")


def status_of(folder: Path) -> ServerStatus:
    status = embedded.status(folder)
    assert status is not None
    return status


def pid_of(folder: Path) -> int:
    return status_of(folder).pid


def kill_server(folder: Path) -> None:
    os.kill(pid_of(folder), signal.SIGKILL)
    wait_until(lambda: not folder_is_served(folder))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_program(folder: Path, says: str, *, name: str = "redis-server", run: str = "") -> Path:
    """Writes a program that prints a version, and does something else without --version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    otherwise = run or f"echo '{says}'"
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{says}"; else {otherwise}; fi\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def only_on_path(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leaves no server programs except those of the named folders."""

    def leave(*folders: Path) -> None:
        monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)) or os.devnull)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    return leave


# ------------------------------------------------------------------ start and share


def test_first_use_starts_a_server(home: Path):
    assert embedded.status(home) is None
    with contextlib.closing(connect(home)) as client:
        assert client.ping()
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "stream-node-max-bytes": "2048",
            "port": "0",
        }
        assert {name: client.config_get(name)[name] for name in wanted} == wanted
    status = status_of(home)
    found = embedded.find_server()
    assert status.version == ".".join(map(str, found.version))
    assert status.data == home / f"{found.flavour}-{found.version[0]}"
    assert status.used_memory > 0
    assert status.uptime >= 0


def test_the_second_use_starts_none(home: Path):
    url = embedded.ensure(home)
    pid = pid_of(home)
    assert embedded.ensure(home) == url
    assert pid_of(home) == pid


@pytest.mark.rest
def test_two_processes_share_it(home: Path, start_child: Callable[..., Child]):
    remember(home, "mine")
    child = start_child()
    child.go()
    assert child.answer() == pid_of(home)
    assert recall(home) == "mine"


def test_racing_starters_start_one(home: Path, start_child: Callable[..., Child]):
    racers = [start_child() for _ in range(RACERS)]
    for racer in racers:
        racer.go()
    assert {racer.answer() for racer in racers} == {pid_of(home)}
    assert not (home / "run" / "server.log.old").exists()  # the log of an earlier start


@pytest.mark.rest
def test_it_outlives_a_killed_starter(home: Path, start_child: Callable[..., Child]):
    child = start_child()
    child.go()
    pid = child.answer()
    child.kill()
    assert pid_of(home) == pid


def test_ctrl_c_of_its_starter_does_not_reach_it(home: Path):
    embedded.ensure(home)
    assert os.getsid(pid_of(home)) != os.getsid(0)
    assert os.getpgid(pid_of(home)) != os.getpgid(0)


def test_a_home_with_odd_letters(tmp_path: Path):
    odd = tmp_path / "a 'home' ü%20#?"
    try:
        remember(odd, "odd")
        assert recall(odd) == "odd"
    finally:
        end_server(odd)


# ------------------------------------------------------------------ crash and stop


def test_data_survive_a_killed_server(home: Path):
    remember(home, "kept")
    pid = pid_of(home)
    kill_server(home)
    assert embedded.status(home) is None
    assert recall(home) == "kept"
    assert pid_of(home) != pid


def test_a_stale_socket_and_pid_stand_for_no_server(home: Path):
    run = home / "run"
    run.mkdir(parents=True)
    with contextlib.closing(sockets.socket(sockets.AF_UNIX)) as left_over:
        left_over.bind(str(run / "redis.sock"))
    (run / "server.pid").write_text(str(os.getpid()))
    assert embedded.status(home) is None
    assert embedded.stop(home) is False
    remember(home, "started")
    assert recall(home) == "started"


def test_stop_keeps_the_data(home: Path):
    remember(home, "kept")
    assert embedded.stop(home) is True
    assert not folder_is_served(home)
    assert embedded.stop(home) is False
    assert recall(home) == "kept"


def test_stop_where_none_ever_ran(home: Path):
    assert embedded.stop(home) is False
    assert not home.exists()


def test_a_hanging_server_is_left_alone(home: Path, monkeypatch: pytest.MonkeyPatch):
    embedded.ensure(home)
    pid = pid_of(home)
    monkeypatch.setattr(server, "READY_S", 0.1)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(RedisUnfit, match=f"pid {pid}"):
            embedded.ensure(home)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert pid_of(home) == pid


def test_a_server_that_answers_late_still_reports_its_state(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    """On a busy machine it answers later than a probe waits."""
    embedded.ensure(home)
    pid = pid_of(home)
    monkeypatch.setattr(server, "_PROBE_TIMEOUT_S", 0.05)
    os.kill(pid, signal.SIGSTOP)
    wakes = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    wakes.start()
    try:
        assert pid_of(home) == pid
    finally:
        wakes.join()


def test_data_are_never_served_twice(home: Path, monkeypatch: pytest.MonkeyPatch):
    embedded.ensure(home)
    pid = pid_of(home)
    socket = find_place(home).socket
    aside = socket.rename(socket.with_name("aside"))
    monkeypatch.setattr(server, "READY_S", 0.1)
    with pytest.raises(RedisUnfit, match=f"pid {pid}"):
        embedded.ensure(home)
    aside.rename(socket)
    assert pid_of(home) == pid


# ------------------------------------------------------------------ privacy and paths


def test_only_this_user_can_reach_it(home: Path):
    (home / "run").mkdir(parents=True, mode=0o755)
    embedded.ensure(home)
    socket = find_place(home).socket
    assert stat.S_ISSOCK(socket.stat().st_mode)
    for path in (socket, socket.parent, status_of(home).data):
        assert mode_of(path) == 0o700


@pytest.mark.rest
def test_a_long_path_gets_a_short_socket(tmp_path: Path, start_child: Callable[..., Child]):
    deep = tmp_path / ("deep" * 20) / ("er" * 20)
    try:
        remember(deep, "deep")
        socket = find_place(deep).socket
        assert len(os.fsencode(socket)) <= place_module.SOCKET_PATH_MAX
        assert mode_of(socket.parent) == 0o700
        child = start_child(deep)
        child.go()
        assert child.answer() == pid_of(deep)
        assert embedded.stop(deep)
        assert recall(deep) == "deep"
        assert find_place(deep).socket == socket
    finally:
        socket = find_place(deep).socket
        end_server(deep)
        shutil.rmtree(socket.parent)


def test_a_planted_socket_folder_is_refused(tmp_path: Path):
    deep = tmp_path / ("deep" * 20) / ("er" * 20)
    planted = find_place(deep).socket.parent
    with run_server() as foreign:
        planted.symlink_to(foreign.folder)
        try:
            assert embedded.status(deep) is None
            with pytest.raises(RedisUnfit, match="not a folder of this user"):
                embedded.ensure(deep)
        finally:
            planted.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_the_data_of_another_user_in_a_shared_home_are_not_served(tmp_path: Path):
    home = tmp_path / "shared"
    for flavour in ("redis", "valkey"):
        folder = home / f"{flavour}-6"
        folder.mkdir(parents=True)
        (folder / "dump.rdb").write_bytes(b"REDIS0009")
    os.chown(home / "valkey-6", 65_534, 65_534)
    with pytest.raises(RedisUnfit, match="valkey-6 is not a folder of this user"):
        embedded.ensure(home)
    assert embedded.status(home) is None


def test_the_data_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FAIRLANE_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert find_place(None).home == tmp_path / ".local/share/fairlane"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert find_place(None).home == tmp_path / "xdg/fairlane"
    monkeypatch.setenv("FAIRLANE_HOME", "~/own")
    assert find_place(None).home == tmp_path / "own"
    assert find_place(tmp_path / "named").home == tmp_path / "named"
    monkeypatch.delenv("FAIRLANE_HOME")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_place(None).home == tmp_path / "Library/Application Support/fairlane"


def test_a_home_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(RedisUnfit, match=r"cannot use .*FAIRLANE_HOME"):
        embedded.ensure(tmp_path / "file" / "home")


# ------------------------------------------------------------------ versions of the data


def test_newer_data_are_refused(home: Path):
    (home / "redis-99" / "appendonlydir").mkdir(parents=True)
    with pytest.raises(
        RedisUnfit, match=r"written by Redis 99, which (Redis|Valkey) \d.* cannot read"
    ) as refused:
        embedded.ensure(home)
    assert refused.value.exit_code == 5
    assert "FAIRLANE_HOME" in str(refused.value)
    assert embedded.status(home) is None


@pytest.fixture
def two_programs(only_on_path: Callable[..., None]) -> Choose:
    """Leaves the server program of one flavour: the system's Redis or the bundled Valkey."""
    found = {"redis": find_system_redis(), "valkey": find_bundled()}
    if None in found.values():
        pytest.skip("needs the system's Redis and the Valkey of the extra `embedded`")

    def choose(flavour: str) -> ServerBinary:
        chosen = found[flavour]
        assert chosen is not None
        only_on_path(chosen.path.parent)
        return chosen

    return choose


def test_data_of_redis_7_are_carried_over_to_valkey(home: Path, two_programs: Choose):
    two_programs("redis")
    remember(home, "old")
    embedded.stop(home)
    newer = two_programs("valkey")
    assert recall(home) == "old"
    assert status_of(home).data == home / f"valkey-{newer.version[0]}"


def test_redis_refuses_data_of_valkey(home: Path, two_programs: Choose):
    writer = two_programs("valkey")
    remember(home, "new")
    embedded.stop(home)
    reader = two_programs("redis")
    with pytest.raises(RedisUnfit) as refused:
        embedded.ensure(home)
    wrote = f"Valkey {writer.version[0]}"
    assert str(refused.value) == (
        f"{home}/valkey-{writer.version[0]} was written by {wrote}, which {reader} ({reader.path})"
        f" cannot read: install {wrote} or newer, or set FAIRLANE_HOME to another folder"
    )


@pytest.mark.parametrize(("head", "is_read"), [(b"REDIS0011", True), (b"REDIS0012", False)])
def test_valkey_reads_what_redis_wrote_up_to_7_2(
    home: Path, tmp_path: Path, only_on_path: Callable[..., None], head: bytes, *, is_read: bool
):
    """Redis 7.4 changed the format of its files."""
    program = write_program(tmp_path / "bin", "Valkey server v=9.0.0", name="valkey-server")
    only_on_path(tmp_path / "bin")
    written = home / "redis-7" / "appendonlydir"
    written.mkdir(parents=True)
    (written / "appendonly.aof.1.base.rdb").write_bytes(head + b"rest")
    if not is_read:
        with pytest.raises(RedisUnfit, match=r"written by Redis 7, which Valkey 9\.0\.0"):
            server.choose(home)
        return
    chosen, folder = server.choose(home)
    assert (chosen.path, folder) == (program, home / "valkey-9")
    assert any((folder / "appendonlydir").iterdir())


def test_data_stay_with_their_flavour(
    home: Path, tmp_path: Path, only_on_path: Callable[..., None]
):
    older = write_program(tmp_path / "1", "Redis server v=7.0.15 sha=0:0")
    write_program(tmp_path / "2", "Valkey server v=9.0.0", name="valkey-server")
    only_on_path(tmp_path / "1", tmp_path / "2")
    (home / "redis-6" / "appendonlydir").mkdir(parents=True)
    chosen, folder = server.choose(home)
    assert (chosen.path, folder) == (older, home / "redis-7")


def test_spoilt_data_are_not_served(home: Path):
    remember(home, "spoilt")
    data = status_of(home).data
    embedded.stop(home)
    for path in data.rglob("appendonly*"):
        if path.is_file():
            path.write_bytes(b"garbage\r\n" * 10)
    with pytest.raises(RedisUnfit, match=r"did not start; its log: [^0-9]") as refused:
        embedded.ensure(home)
    assert "\n" not in str(refused.value)
    assert embedded.status(home) is None


# ------------------------------------------------------------------ which program


def test_the_newest_program_wins_not_the_first(tmp_path: Path, only_on_path: Callable[..., None]):
    write_program(tmp_path / "1", "Redis server v=7.0.14 sha=0:0")
    newest = write_program(tmp_path / "2", "Redis server v=7.10.0 sha=0:0")
    write_program(tmp_path / "3", "Valkey server v=7.9.1 sha=0:0", name="valkey-server")
    only_on_path(tmp_path / "1", tmp_path / "2", tmp_path / "3")
    found = embedded.find_server()
    assert (found.path, found.version, found.flavour) == (newest, (7, 10, 0), "redis")
    assert str(found) == "Redis 7.10.0"


def test_valkey_is_a_server_by_either_name(tmp_path: Path, only_on_path: Callable[..., None]):
    real = write_program(tmp_path / "1", "Valkey server v=8.1.0 sha=0:0", name="valkey-server")
    (tmp_path / "1" / "redis-server").symlink_to(real)
    only_on_path(tmp_path / "1")
    assert embedded.find_server().flavour == "valkey"


def test_unfit_programs_are_passed_over(tmp_path: Path, only_on_path: Callable[..., None]):
    write_program(tmp_path / "1", "Redis server v=6.2.20 sha=0:0")
    write_program(tmp_path / "2", "Redis server v=9.0.0 sha=0:0").chmod(0o644)
    write_program(tmp_path / "3", "Segmentation fault")
    (tmp_path / "4" / "redis-server").mkdir(parents=True)
    only_on_path(*(tmp_path / name for name in "1234"))
    with pytest.raises(RedisUnfit, match=r"install Redis 7\.0, Valkey 7\.2 or newer") as refused:
        embedded.find_server()
    assert "pip install '.[embedded]'` in a clone" in str(refused.value)
    assert "--redis" in str(refused.value)


def test_the_error_of_a_failing_server_has_its_log(
    home: Path, tmp_path: Path, only_on_path: Callable[..., None]
):
    write_program(tmp_path / "bin", "Redis server v=7.2.0", run="echo no room on the moon; exit 1")
    only_on_path(tmp_path / "bin")
    with pytest.raises(RedisUnfit, match=r"Redis 7\.2\.0 .*did not start.*no room on the moon"):
        embedded.ensure(home)
