"""The kinds of server that tests run on: which are available, and how each is started.

A test runs on USUAL: two kinds that differ in the program and in the topology. `make test` runs
most tests on one of them, `make test-rest` on the other (`is_other_kind`).
FAIRLANE_TESTS_SERVERS names others, as `FAIRLANE_TESTS_SERVERS=cluster3,sentinel`; then only what
runs on a back end runs at all.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import redis

from tests.support import security
from tests.support.security import load_scripts, make_security
from tests.support.servers import clusters, containers, sentinels, server_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VARIABLE = "FAIRLANE_TESTS_SERVERS"
USUAL = ("single", "cluster1")
OTHERS = ("system_redis", "cluster3", "sentinel", "tls_acl", "container")
TESTS = Path(__file__).resolve().parents[2]
OPERATIONS = ("operations", "drivers", "spark/operations")
SCRIPTS = ("scripts", "spark/scripts")
EVERYTHING = (*SCRIPTS, *OPERATIONS, "worker", "cli")
# Their subject differs by kind: the way to the server, or scripts of a server with all keys.
ON_BOTH_KINDS = (
    *("drivers", "operations/create", "operations/submit", "operations/lease/test_rates.py"),
    "operations/lease/test_limit_keys.py",
    *("scripts/lease/test_exchange.py", "scripts/lease/test_exchange_rates.py"),
    *("scripts/creation/test_submit.py", "scripts/creation/test_distinct.py"),
    *("scripts/dispatch/test_place.py", "scripts/dispatch/test_limit_keys.py"),
    *("scripts/change/test_rates.py", "package/test_aio.py", "backends/test_support.py"),
)
# Where less is enough: what differs from `single` is the way to the server, or the server alone.
FOLDERS = {
    "sentinel": (*OPERATIONS, "worker"),
    "container": OPERATIONS,
}
WITH_REPLICAS = frozenset({"cluster3", "sentinel"})
PATIENT_MS = 10_000  # longer than any test keeps a server busy: no failover happens by mistake


class Backend(Protocol):
    """What a test needs from any kind of server."""

    @property
    def kind(self) -> str:
        """Its name in USUAL or OTHERS."""

    @property
    def url(self) -> str:
        """The URL that a user of Fairlane would pass."""

    def client(self) -> Any:
        """Makes a raw client that reaches every key: bytes in and out, no retries of its own."""


class EveryNode(redis.RedisCluster):
    """A client that sends to every primary where redis-py sends to one."""

    def execute_command(self, *args: Any, **given: Any) -> Any:
        """Merges the replies of the nodes into one, as a single server would send it."""
        name = " ".join(str(word).upper() for word in args[:2])
        together = next((TOGETHER[begin] for begin in TOGETHER if name.startswith(begin)), None)
        if together is None or given.get("target_nodes") is not None:
            return super().execute_command(*args, **given)
        given.pop("target_nodes", None)
        return together(
            [
                super(EveryNode, self).execute_command(*args, **given, target_nodes=node)
                for node in self.get_primaries()
            ]
        )

    def close(self) -> None:
        """Closes the connections to every node: redis-py leaves some to the garbage collector."""
        for node in self.get_nodes():
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect()
        super().close()


def _first(replies: list[Any]) -> Any:
    return replies[0]


def _listeners(replies: list[Any]) -> list[tuple[bytes, int]]:
    """Returns pairs of a channel and a count."""
    return [(pairs[0][0], sum(count for _, count in pairs)) for pairs in zip(*replies, strict=True)]


def _added(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges the INFO of several nodes: counts are added up."""
    whole: dict[str, Any] = {}
    for info in infos:
        for name, value in info.items():
            if isinstance(value, dict):
                whole[name] = _added([whole.get(name, {}), value])
            elif isinstance(value, int) and name in whole and name != "process_id":
                whole[name] += value
            else:
                whole.setdefault(name, value)
    return whole


TOGETHER: dict[str, Callable[[list[Any]], Any]] = {
    "ACL ": _first,
    "CLIENT KILL": _first,
    "CONFIG RESETSTAT": _first,
    "CONFIG SET": _first,
    "DBSIZE": sum,
    "INFO": _added,
    "KEYS": lambda replies: list(chain(*replies)),
    "PUBSUB NUMSUB": _listeners,
    "PUBSUB SHARDNUMSUB": _listeners,
    "SCRIPT EXISTS": lambda replies: [any(column) for column in zip(*replies, strict=True)],
    "SCRIPT ": _first,
}


def at(client: Any, key: bytes) -> Any:
    """Returns a client of the one server that has this key."""
    if isinstance(client, redis.RedisCluster):
        return client.get_redis_connection(client.get_node_from_key(key))
    return client


@dataclass(frozen=True)
class OnCluster:
    """A cluster of three primaries, each with a replica."""

    cluster: clusters.Cluster
    kind: str = "cluster3"

    @property
    def url(self) -> str:
        """The URL with all nodes."""
        return self.cluster.url

    def client(self) -> Any:
        """Makes a client that finds the node of each key, and calls all primaries without a key."""
        host, port = self.cluster.nodes[0].address
        return EveryNode.from_url(f"redis://{host}:{port}", socket_timeout=30)


@dataclass(frozen=True)
class OnSentinel:
    """A master, its replica and three sentinels."""

    guarded: sentinels.Guarded
    kind: str = "sentinel"

    @property
    def url(self) -> str:
        """The URL with the sentinels, and their name for the master."""
        return self.guarded.url

    def client(self) -> redis.Redis:
        """Makes a client of the master: nothing in these tests moves that role elsewhere."""
        return self.guarded.first.client()


def chosen() -> tuple[str, ...]:
    """Returns the kinds to run on."""
    named = os.environ.get(VARIABLE, "").replace(",", " ").split()
    if unknown := set(named) - set(USUAL) - set(OTHERS):
        raise ValueError(f"{VARIABLE}: no such back end: {', '.join(sorted(unknown))}")
    return tuple(named) or USUAL


@cache
def takes(kind: str, path: Path) -> bool:
    """Returns True if the tests of this file run on that kind when it is named."""
    return any(path.is_relative_to(TESTS / name) for name in FOLDERS.get(kind, EVERYTHING))


@cache
def is_other_kind(kind: str, path: Path) -> bool:
    """Returns whether `make test` leaves out the tests of this file on this kind of USUAL.

    A cluster refuses keys that a script does not declare. So the scripts run on `cluster1`.
    """
    if kind not in USUAL or any(path.is_relative_to(TESTS / name) for name in ON_BOTH_KINDS):
        return False
    is_script = any(path.is_relative_to(TESTS / name) for name in SCRIPTS)
    return kind == ("single" if is_script else "cluster1")


def one() -> tuple[str, ...]:
    """Returns the kinds for a test to which the kind matters little: `single`, or those named."""
    return chosen() if is_named() else ("single",)


def use_one(metafunc: pytest.Metafunc) -> None:
    """Runs a test on `one` kind, unless it names its kinds: a hook of folders that share this."""
    named = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    if "redis_server" in metafunc.fixturenames and "redis_server" not in named:
        metafunc.definition.add_marker(
            pytest.mark.parametrize("redis_server", one(), indirect=True)
        )


def every() -> list[Any]:
    """Returns every chosen kind as parameters; the second of USUAL is left to `make test-rest`."""
    later = () if is_named() else USUAL[1:]
    return [
        pytest.param(kind, marks=pytest.mark.rest if kind in later else ()) for kind in chosen()
    ]


def leave_one_connection(client: Any) -> None:
    """Closes what concurrent calls of a test opened: the next test may count connections."""
    if isinstance(client, redis.Redis) and len(client.connection_pool._available_connections) > 1:
        client.connection_pool.disconnect()


def is_named() -> bool:
    """Returns True if the kinds were chosen by the environment."""
    return bool(os.environ.get(VARIABLE))


def why_not(kind: str) -> str | None:
    """Returns why a kind can't run here; None if it can."""
    if kind == "tls_acl":
        return security.why_not()
    if kind == "container":
        return containers.no_engine()
    try:
        server_process.program_of(kind)
    except LookupError as missing:
        return str(missing)
    return None


def name_of(kind: str) -> str:
    """Returns the program that runs there, with its version."""
    if kind == "container":
        return containers.image()
    return str(
        server_process.find_secure() if kind == "tls_acl" else server_process.program_of(kind)
    )


def make_ready(backend: Backend, client: Any) -> None:
    """Loads the scripts as a deployer, where the product's user may not load them."""
    if backend.kind == "tls_acl":
        load_scripts(client)


def admin_url(backend: Backend) -> str:
    """Returns the URL for tests that send commands which no role may send."""
    if isinstance(backend, server_process.Server) and backend.security:
        known = backend.security
        return backend.url.replace(known.credentials, known.admin_credentials)
    return backend.url


@contextlib.contextmanager
def run_backend(kind: str) -> Iterator[Backend]:
    """Runs a back end. Raises LookupError if there is none here."""
    with RUN.get(kind, server_process.run_server)(kind) as made:
        yield made


@contextlib.contextmanager
def _cluster3(_: str) -> Iterator[Backend]:
    with clusters.run_cluster(node_timeout_ms=PATIENT_MS) as cluster:
        yield OnCluster(cluster)


@contextlib.contextmanager
def _sentinel(_: str) -> Iterator[Backend]:
    with sentinels.run_guarded(3, down_after_ms=PATIENT_MS) as guarded:
        yield OnSentinel(guarded)


@contextlib.contextmanager
def _tls_acl(kind: str) -> Iterator[Backend]:
    """Gives the product's user the least rights; `make_ready` loads its scripts."""
    with tempfile.TemporaryDirectory(prefix="fl-t-") as folder:
        made = make_security(Path(folder))
        with server_process.run_server(kind, security=made) as server:
            yield server


@contextlib.contextmanager
def _container(_: str) -> Iterator[Backend]:
    with containers.run_redis() as made:
        yield made


RUN: dict[str, Callable[[str], contextlib.AbstractContextManager[Backend]]] = {
    "cluster3": _cluster3,
    "sentinel": _sentinel,
    "tls_acl": _tls_acl,
    "container": _container,
}
