"""Reads what each primary reports of itself: memory, persistence, clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import FairlaneError
from fairlane.operations.diagnosis.server_checks import Facts
from fairlane.operations.observe.model import ServerState, ServerStates
from fairlane.protocol.server_info import read_info, release
from fairlane.protocol.steps import Command, Nodes, OnNode

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

MOST_NODES = 50  # primaries that are read


def read_servers() -> Operation[ServerStates]:
    """Returns the primaries, one INFO each. One that does not answer, or refuses, has an error."""
    nodes = (yield Nodes())[:MOST_NODES]
    found: list[ServerState] = []
    for node in nodes:
        found += yield from _server(node)
    if not nodes or nodes[0] is None:
        return ServerStates(found)
    try:
        text = yield OnNode(nodes[0], Command(b"CLUSTER", b"INFO"))
    except FairlaneError:
        return ServerStates(found)
    info = read_info(text)
    return ServerStates(found, info.get("cluster_state", ""), int(info.get("cluster_slots_ok", 0)))


def _server(node: Any) -> Operation[list[ServerState]]:
    shown = "" if node is None else ":".join(map(str, node))
    try:
        text = yield OnNode(node, Command(b"INFO"))
    except FairlaneError as error:
        return [ServerState(shown, error=str(error))]
    return [_state(shown, Facts(read_info(text), None))]


def _state(node: str, facts: Facts) -> ServerState:
    name, version = release(facts.info)
    text, is_persisted = _persistence(facts)
    return ServerState(
        node=node,
        program=name,
        version=".".join(map(str, version)),
        role="primary" if facts.info.get("role") == "master" else facts.info.get("role", ""),
        used=facts.number("used_memory"),
        most=facts.number("maxmemory"),
        peak=facts.number("used_memory_peak"),
        persistence=text,
        is_persisted=is_persisted,
        replicas=facts.number("connected_slaves"),
        clients=facts.number("connected_clients"),
        blocked=facts.number("blocked_clients"),
        commands_per_s=facts.number("instantaneous_ops_per_sec"),
        uptime_s=facts.number("uptime_in_seconds"),
        keys=_keys(facts.info),
    )


def _persistence(facts: Facts) -> tuple[str, bool]:
    if facts.info.get("aof_enabled") == "1":
        is_ok = facts.info.get("aof_last_write_status", "ok") == "ok"
        return ("append-only file" if is_ok else "append-only file, the last write failed"), is_ok
    changes = facts.number("rdb_changes_since_last_save")
    if facts.info.get("rdb_last_bgsave_status", "ok") != "ok":
        return f"the last snapshot failed; {changes:,} changes are in memory only", False
    return f"no append-only file; {changes:,} changes since the last snapshot", False


def _keys(info: dict[str, str]) -> int:
    """Returns the keys of database 0, from `keys=5,expires=1`."""
    first = info.get("db0", "").partition(",")[0].partition("=")[2]
    return int(first) if first.isdigit() else 0
