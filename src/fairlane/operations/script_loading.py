"""The scripts of this release on every server of a deployment: what is there, and loading it.

A server keeps scripts in memory only. After a restart it has none, and after a failover the new
primary has only those that were loaded there. So scripts are loaded onto replicas, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.protocol.lua import Dialect, library
from fairlane.protocol.server_info import read_info
from fairlane.protocol.steps import Command, Nodes, OnNode

if TYPE_CHECKING:
    from fairlane.protocol.lua import Script

Address = tuple[str, int]
PRIMARY, REPLICA = "primary", "replica"


class ServerAddress(NamedTuple):
    """One server: its `node` for OnNode, and its name for people."""

    node: Any
    name: str


class ScriptStatus(NamedTuple):
    """The scripts on one server: which are missing, and which were loaded by this call.

    `error` is the reason why they could not be read; then both are empty.
    """

    name: str
    role: str
    missing: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_well(self) -> bool:
        """Returns True if every script is there."""
        return not self.missing and not self.error


async def everywhere(place: str) -> list[ServerAddress]:
    """Returns the servers of the deployment with their replicas; `place` names the unnamed one.

    Raises RedisError if no node answers.
    """
    primaries = await Nodes()
    if primaries == [None]:
        info = read_info(await OnNode(None, Command(b"INFO", b"replication")))
        found = [one for name, text in info.items() if (one := _follower(name, text))]
        return [
            ServerAddress(None, place),
            *(ServerAddress(one, f"{one[0]}:{one[1]}") for one in found),
        ]
    return [ServerAddress(one, f"{one[0]}:{one[1]}") for one in await _of_cluster(primaries)]


def _follower(name: str, text: str) -> Address | None:
    """Reads the address in `slave0:ip=127.0.0.1,port=6380,state=online,...` of INFO."""
    if not name.startswith("slave") or "=" not in text:
        return None
    fields = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    return fields["ip"], int(fields["port"])


async def _of_cluster(primaries: list[Any]) -> list[Address]:
    """Returns the addresses of all nodes, primaries first."""
    failure: FairlaneError = RedisUnreachable("no node of the cluster answers")
    for node in primaries:
        try:
            # CLUSTER SLOTS has the names that nodes announce. It leaves out replicas that have
            # nothing to copy yet.
            rows = await OnNode(node, Command(b"CLUSTER", b"SLOTS"))
            listed = await OnNode(node, Command(b"CLUSTER", b"NODES"))
        except FairlaneError as error:
            failure = error
            continue
        # If a node reports no name of its own, we use the name under which we reached it.
        named = {
            home[2]: ((home[0] or b"").decode() or node[0], home[1])
            for row in rows
            for home in row[2:]
        }
        others = _listed(listed.decode(), node)
        known = [*named.values(), *(at for key, at in others.items() if key not in named)]
        return list(dict.fromkeys([*primaries, *known]))
    raise failure


def _listed(text: str, asked: Address) -> dict[bytes, Address]:
    """Returns id -> address of all nodes in CLUSTER NODES, also of those that failed."""
    found = {}
    for line in text.splitlines():
        name, place, flags = line.split()[:3]
        host, _, port = place.partition("@")[0].rpartition(":")
        if not {"noaddr", "handshake"} & set(flags.split(",")):
            found[name.encode()] = host or asked[0], int(port)
    return found


async def look(place: ServerAddress, *, load: bool) -> ScriptStatus:
    """Returns what is missing on one server; with `load`, loads it. Raises no error of Redis."""
    role = ""
    try:
        info = read_info(await OnNode(place.node, Command(b"INFO")))
        role = PRIMARY if info.get("role") == "master" else REPLICA
        dialect = Dialect.of(info)
        missing = await _missing(place, dialect)
        if not load or not missing:
            return ScriptStatus(place.name, role, tuple(script.name for script in missing))
        for script in missing:
            await OnNode(place.node, Command(b"SCRIPT", b"LOAD", script.source(dialect)))
        left = await _missing(place, dialect)
    except FairlaneError as error:
        return ScriptStatus(place.name, role, error=str(error))
    return ScriptStatus(
        place.name,
        role,
        tuple(script.name for script in left),
        tuple(script.name for script in missing if script not in left),
    )


async def _missing(place: ServerAddress, dialect: Dialect) -> list[Script]:
    scripts = list(library())
    shas = [script.shas[dialect] for script in scripts]
    there = await OnNode(place.node, Command(b"SCRIPT", b"EXISTS", *shas))
    return [script for script, is_there in zip(scripts, there, strict=True) if not is_there]


def count() -> int:
    """Returns how many scripts this release has."""
    return len(list(library()))
