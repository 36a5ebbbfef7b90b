"""Runs private Redis servers for the tests: without persistence, ended with the test run.

Each listens on 127.0.0.1 at a port of its own, and on a unix socket in a temporary folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlane.embedded import ServerBinary, find_server
from fairlane.embedded.server import bundled_folders, fit_servers, identify
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.security import Security

KINDS = ("single", "cluster1", "system_redis")
NO_SYSTEM_REDIS = "no redis-server of Redis 7.0 or newer on PATH"
ONLY_ONE = "the system's Redis is the only server program: `single` runs on it already"
NO_TLS = "no server program here was built with TLS"
HOST = "127.0.0.1"
SLOTS = 16384
BUS_OFFSET = 10_000
# Below the ports that the kernel gives to callers, with the bus's: so a port that was left by a
# server is still free when the server comes back.
PORTS = range(11_000, 22_000)
TRIES = 5

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
        """The URL that a user of Fairlane would pass."""
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
        """The URL of the same node by its unix socket."""
        return f"unix://{self.folder}/redis.sock"

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return self.process.pid

    def client(self) -> redis.Redis:
        """Makes a raw client: bytes in and out, and no retries of its own."""
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
    """Runs a server of one kind; more options are those of redis-server."""
    binary = binary or (find_secure() if security else program_of(kind))
    # A child that rewrites the file outlives its server for a moment, and writes.
    with tempfile.TemporaryDirectory(prefix="fl-", ignore_cleanup_errors=True) as folder:
        server = _start(kind, binary, Path(folder), options, security)
        try:
            if kind == "cluster1":
                _form_cluster(server)
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def program_of(kind: str) -> ServerBinary:
    """Returns the program of this kind: `cluster1` prefers the system's Redis.

    Raises LookupError if a kind has no program here.
    """
    if kind not in {"cluster1", "system_redis"}:
        return find_server()
    found = find_system_redis()
    if kind == "cluster1":
        return found or find_server()
    if found is None:
        raise LookupError(NO_SYSTEM_REDIS)
    if found == find_server():
        raise LookupError(ONLY_ONE)
    return found


def skip_unless_there(kind: str) -> None:
    """Skips a test whose server program is not installed."""
    try:
        program_of(kind)
    except LookupError as missing:
        pytest.skip(str(missing))


def find_system_redis() -> ServerBinary | None:
    """Returns the Redis of this system, if there is one that is new enough."""
    path = shutil.which("redis-server")
    found = identify(Path(path)) if path else None
    return found if found is not None and found.flavour == "redis" else None


def find_bundled() -> ServerBinary | None:
    """Returns the server that the extra `embedded` brings, if it is installed."""
    paths = (folder / "valkey-server" for folder in bundled_folders())
    return next((found for path in paths if (found := identify(path)) is not None), None)


@cache
def find_secure() -> ServerBinary:
    """Returns the newest server program that was built with TLS.

    Raises LookupError where there is none.
    """
    for found in fit_servers():
        words = [str(found.path), "--port", "0", "--tls-port", "1"]
        said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        if "No tls-cert-file configured" in said:
            return found
    raise LookupError(NO_TLS)


def _start(
    kind: str,
    binary: ServerBinary,
    folder: Path,
    options: tuple[str, ...],
    security: Security | None,
) -> Server:
    """Starts the server; at another port if this one is in use."""
    for _ in range(TRIES):
        port = _free_port()
        given = (*(security.options(port) if security else ()), *options)
        process = _spawn(kind, binary, folder, port, given)
        server = Server(kind, binary, port, folder, process, security)
        try:
            state = wait_until(partial(_state, server), why=f"{binary} answers")
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
    """Returns the command line of a server that keeps nothing."""
    words = [str(binary.path), "--port", str(port), "--bind", HOST, "--dir", str(folder)]
    words += ["--unixsocket", str(folder / "redis.sock"), "--unixsocketperm", "700"]
    words += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    return [*words, "--repl-diskless-sync-delay", "0", *options]


def node_words(binary: ServerBinary, folder: Path, port: int, *options: str) -> list[str]:
    """Returns the command line of a node of a cluster."""
    own = ("--cluster-enabled", "yes", "--cluster-announce-ip", HOST)
    return server_words(binary, folder, port, *own, *options)


def spawn(words: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Starts a process that ends with this one; its output is appended to a file."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - runs one system call, no Python lock
        )


def _die_with_parent() -> None:
    """Makes the kernel end this process when the test run dies, however it dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _state(server: Server) -> str:
    """Returns "up" or "ended"; nothing while it is neither."""
    if server.process.poll() is not None:
        return "ended"
    with contextlib.closing(server.client()) as client, contextlib.suppress(redis.RedisError):
        if client.info("server")["process_id"] == server.pid:
            return "up"
    return ""


def _free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Returns free ports whose ports for the cluster bus are free, too."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        with socket.socket() as data, socket.socket() as bus:
            if port not in found and _can_bind(data, port) and _can_bind(bus, port + BUS_OFFSET):
                found.append(port)
    return found


def is_open(port: int) -> bool:
    """Returns True if a process listens at a port of this machine."""
    with socket.socket() as caller:
        return caller.connect_ex((HOST, port)) == 0


def _can_bind(caller: socket.socket, port: int) -> bool:
    try:
        caller.bind((HOST, port))
    except OSError:
        return False
    return True


def _form_cluster(server: Server) -> None:
    """Gives all hash slots to the one node and waits until it serves them."""
    with contextlib.closing(server.client()) as client:
        if server.binary.version >= (7, 0, 0):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        else:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        wait_until(
            lambda: b"cluster_state:ok" in _cluster_info(client),
            PATIENCE_S,
            why="the cluster serves its slots",
        )


def _cluster_info(client: redis.Redis) -> bytes:
    answer = client.execute_command("CLUSTER INFO")
    if isinstance(answer, dict):
        return f"cluster_state:{answer.get('cluster_state')}".encode()
    return bytes(answer)
