"""The cluster of cluster-compose.yml as containers, and its nodes' reports of themselves."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tests.compose.engine import EngineFailed, run
from tests.guide.blocks import ROOT
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compose.engine import Engine

FILE = ROOT / "cluster-compose.yml"
HOST = "127.0.0.1"
NODES = range(6)
SLOTS = 16384
UP_S = 240.0
USUAL = "700"
FIRST_DIGITS = (USUAL, "710", "720", "730", "740")  # of the ports


class Node(NamedTuple):
    """One node in the view of another one."""

    port: int
    is_primary: bool
    slots: tuple[tuple[int, int], ...]

    def serves(self, key: str) -> bool:
        slot = key_slot(key.encode())
        return any(first <= slot <= last for first, last in self.slots)


@dataclass(frozen=True)
class Cluster:
    """The containers of one compose project."""

    engine: Engine
    image: str
    project: str
    digits: str

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self.digits}0"

    @cached_property
    def env(self) -> dict[str, str]:
        """Returns the environment that names this project, its image and its ports to compose."""
        return {
            **self.engine.env,
            "COMPOSE_PROJECT_NAME": self.project,
            "FAIRLANE_REDIS_IMAGE": self.image,
            "FAIRLANE_CLUSTER_PORTS": self.digits,
        }

    def compose(self, *words: str, timeout: float = UP_S) -> str:
        return run([*self.engine.compose(), "-f", str(FILE), *words], self.env, timeout)

    def logs(self, service: str) -> list[str]:
        return self.engine.run("logs", self.container(service)).splitlines()

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def left_behind(self) -> list[str]:
        """Returns the containers, networks and volumes that this project has."""
        label = f"label=com.docker.compose.project={self.project}"
        found = self.engine.run("ps", "--all", "--quiet", "--filter", label)
        for kind in ("network", "volume"):
            found += self.engine.run(kind, "ls", "--quiet", "--filter", label)
        return found.split()

    def nodes(self) -> list[Node]:
        """Returns the nodes that are not given up, in the view of the first that answers."""
        for number in NODES:
            with contextlib.suppress(redis.RedisError), self.client(self.port(number)) as client:
                return _parse(client.execute_command("CLUSTER NODES"))
        raise EngineFailed("no node of the cluster answers")

    def primary_of(self, key: str) -> Node:
        return next(node for node in self.nodes() if node.serves(key))

    def primaries(self) -> list[Node]:
        """Returns the nodes that serve slots, in the order of their ports."""
        return sorted(node for node in self.nodes() if node.slots)

    def fail_over(self, port: int) -> float:
        """Kills a node's container; returns after how many seconds others serve all slots."""
        container = self.container(service_of(port))
        began = time.monotonic()
        self.engine.run("kill", "--signal", "KILL", container)
        wait_until(lambda: self._serves_without(port), PATIENCE_S, every=0.05, why="a failover")
        return time.monotonic() - began

    def _serves_without(self, port: int) -> bool:
        nodes = [node for node in self.nodes() if node.port != port]
        return sum(last - first + 1 for node in nodes for first, last in node.slots) == SLOTS

    def wait_until_whole(self) -> None:
        """Waits until three primaries have a replica each."""
        wait_until(self._is_whole, PATIENCE_S, every=0.05, why="three primaries, three replicas")

    def _is_whole(self) -> bool:
        primaries = [node.is_primary for node in self.nodes()]
        return (primaries.count(True), primaries.count(False)) == (3, 3)

    def port(self, number: int) -> int:
        return int(f"{self.digits}{number}")

    @contextlib.contextmanager
    def client(self, port: int) -> Iterator[redis.Redis]:
        client = redis.Redis(host=HOST, port=port, retry=Retry(NoBackoff(), 0), socket_timeout=5)
        with contextlib.closing(client):
            yield client


def service_of(port: int) -> str:
    return f"node-{port % 10}"


def free_digits() -> str:
    """Returns the first digits of ports that are all free on this machine, 700 if possible."""
    for digits in FIRST_DIGITS:
        if all(_is_free(int(f"{digits}{number}")) for number in NODES):
            return digits
    raise EngineFailed(f"ports from {FIRST_DIGITS[0]}0 to {FIRST_DIGITS[-1]}5 are taken")


def _is_free(port: int) -> bool:
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, port))
        except OSError:
            return False
    return True


def _parse(nodes: dict[str, dict[str, object]]) -> list[Node]:
    found = []
    for address, said in nodes.items():
        flags = str(said["flags"]).split(",")
        if not {"fail", "noaddr", "handshake"} & set(flags):
            ranges = said["slots"]
            assert isinstance(ranges, list)
            slots = tuple((int(one[0]), int(one[-1])) for one in ranges)
            found.append(Node(int(address.rpartition(":")[2]), "master" in flags, slots))
    return found
