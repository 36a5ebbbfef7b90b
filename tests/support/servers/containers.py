"""Runs one Redis in a container, on machines where a container engine runs.

    if reason := no_engine():
        pytest.skip(reason)
    with run_redis() as server:
        Queue.from_url(server.url)

The image is FAIRLANE_REDIS_IMAGE, else the official one: any with sh and redis- or valkey-server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "FAIRLANE_REDIS_IMAGE"
OFFICIAL = "redis:7.4.2@sha256:fbdbaea47b9ae4ecc2082ecdb4e1cea81e32176ffb1dcf643d422ad07427e5d9"
KIND = "container"
HOST = "127.0.0.1"
PORT = "6379/tcp"
SERVER = 'exec "$(command -v valkey-server || command -v redis-server)" "$@"'
PING_S = 5
SOCKET = "unix:///var/run/docker.sock"


@dataclass(frozen=True)
class Container:
    """A running container, with those attributes of `servers.Server` that need no process."""

    id: str
    port: int
    kind: str = KIND

    @property
    def url(self) -> str:
        """The URL that a user of Fairlane would pass."""
        return f"redis://{HOST}:{self.port}"

    node_url = url

    def client(self) -> redis.Redis:
        """Makes a raw client: bytes in and out, and no retries of its own."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=30)


def image() -> str:
    """Returns the name of the image that the containers run."""
    return os.environ.get(IMAGE) or OFFICIAL


def no_engine() -> str | None:
    """Returns why no container can be run here; None where one can. Pulls no image for it."""
    if importlib.util.find_spec("testcontainers") is None:
        return "testcontainers is not installed: the extra `dev` brings it"
    url = os.environ.get("DOCKER_HOST") or SOCKET
    try:
        with contextlib.closing(_connect(urlsplit(url))) as line:
            line.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            said = line.recv(64)
    except (OSError, ValueError) as error:
        return f"no container engine answers at {url}: {error}"
    return None if b" 200 " in said else f"no container engine is what answers at {url}"


def _connect(url: SplitResult) -> socket.socket:
    match url.scheme:
        case "unix":
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(PING_S)
            try:
                line.connect(url.path)
            except OSError:
                line.close()
                raise
            return line
        case "tcp":
            return socket.create_connection((url.hostname, url.port or 2375), PING_S)
    raise ValueError("it is neither a unix:// nor a tcp:// address")


@contextlib.contextmanager
def run_redis(*options: str) -> Iterator[Container]:
    """Runs a Redis that keeps nothing; more options are those of redis-server.

    Raises LookupError when the image is neither here nor to be had.
    """
    import docker
    from testcontainers.core.container import DockerContainer

    _do_without_its_own_reaper()
    words = ["sh", "-c", SERVER, "sh", "--port", "6379", "--protected-mode", "no", "--save", ""]
    words += ["--appendonly", "no", "--maxmemory-policy", "noeviction", *options]
    made: Any = DockerContainer(image()).with_command(words)
    made.ports[PORT] = (HOST, None)  # any free port, for this machine only
    try:
        made.start()
    except docker.errors.APIError as error:
        made.stop()
        raise LookupError(f"no container of {image()}: {error.explanation}") from error
    try:
        server = Container(made.get_container_id(), int(made.get_exposed_port(6379)))
        wait_until(lambda: _answers(server), why=f"{image()} answers")
        yield server
    finally:
        made.stop()


def _answers(server: Container) -> bool:
    with contextlib.closing(server.client()) as client, contextlib.suppress(redis.RedisError):
        return bool(client.ping())
    return False


def _do_without_its_own_reaper() -> None:
    """Turns off the library's container that removes containers: it is one more image to pull.

    `run_redis` removes what it made. Only a run that is ended by `kill -9` leaves one behind.
    """
    from testcontainers.core.config import testcontainers_config

    testcontainers_config.ryuk_disabled = True
