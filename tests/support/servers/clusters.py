"""A real cluster of local redis-server processes, which tests kill, fail over and reshard.

The nodes find their roles, their slots and each other in the `nodes.conf` that is written before
they start. So it forms in the two seconds that a node of a cluster waits before it takes writes.

    with run_cluster() as cluster:
        cluster.kill(cluster.owner("{req}:5"))
        cluster.wait_ok()
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from fairlane.embedded import ServerBinary, find_server
from tests.support.servers import server_process
from tests.support.servers.server_process import HOST, SLOTS
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from tests.support.security import Security

OK_S = PATIENCE_S
ANSWER_S = 10.0
MIGRATE_MS = 5_000
BATCH = 100
TRIES = 5
NO_NODE = ""
SHARDS_SINCE = (7, 2, 0)  # the servers whose nodes.conf names shards
MANUAL_S = 5.5  # for so long a node tries what CLUSTER FAILOVER asks for


@dataclass(eq=False)
class Node:
    """One process of the cluster, in whatever role it now has."""

    id: str
    port: int
    folder: Path
    words: list[str]  # its command line
    access: dict[str, Any] = field(default_factory=dict)  # what a client needs besides the port
    stopped: bool = False
    host: str = HOST
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def pid(self) -> int:
        """The process id of the present or the last process."""
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        """The address where the node listens."""
        return self.host, self.port

    @property
    def is_live(self) -> bool:
        """True if the process runs and no test stopped it."""
        return self.process.poll() is None and not self.stopped

    def start(self) -> None:
        """Starts a process in the node's folder."""
        self.process = server_process.spawn(self.words, self.folder / "server.log")
        self.stopped = False

    def answers(self) -> bool:
        """Returns whether this very process takes commands; False if it ended, or is loading."""
        with contextlib.suppress(redis.RedisError):
            return bool(self.control.info("server")["process_id"] == self.pid)
        return False

    def client(self, timeout_s: float = ANSWER_S) -> redis.Redis:
        """Makes a raw client of this node: bytes in and out, no retries, no redirections."""
        return redis.Redis(
            host=self.host,
            port=self.port,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            **self.access,
        )

    @cached_property
    def control(self) -> Any:
        """The client for commands to the cluster; any thread may use it."""
        return self.client()

    def ask(self, *words: Any) -> Any:
        """Returns one command's reply as redis-py does, but text is a str."""
        reply = self.control.execute_command(*words)
        return reply.decode() if isinstance(reply, bytes) else reply

    def log(self) -> str:
        """Returns the node's log."""
        return (self.folder / "server.log").read_text(errors="replace")

    def __str__(self) -> str:
        return f"node {self.host}:{self.port} (pid {self.pid})"


class View(NamedTuple):
    """Which node serves which slots, as one node sees it; by the nodes' ids."""

    slots: tuple[str, ...]  # slot -> its primary; NO_NODE where there is none
    primaries: frozenset[tuple[str, str]]  # (replica, its primary)
    failing: frozenset[str]

    @classmethod
    def read(cls, text: str) -> View:
        """Parses the reply to CLUSTER NODES."""
        slots, primaries, failing = [NO_NODE] * SLOTS, set(), set()
        for line in text.splitlines():
            node, _, flags, primary, _, _, _, _, *ranges = line.split()
            for found in ranges:
                if not found.startswith("["):
                    first, _, last = found.partition("-")
                    begin, end = int(first), int(last or first) + 1
                    slots[begin:end] = [node] * (end - begin)
            if "slave" in flags.split(","):
                primaries.add((node, primary))
            if {"fail", "fail?"} & set(flags.split(",")):
                failing.add(node)
        return cls(tuple(slots), frozenset(primaries), frozenset(failing))

    def owners(self) -> dict[str, int]:
        """Returns, for each primary that serves slots, how many."""
        return {node: count for node, count in Counter(self.slots).items() if node != NO_NODE}


@dataclass
class Cluster:
    """The processes, and the present state of the cluster."""

    nodes: list[Node]
    security: Security | None = None
    _moves: dict[int, tuple[Node, Node]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL that a user of Fairlane would pass."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        if self.security:
            return f"rediss+cluster://{self.security.credentials}{hosts}{self.security.query}"
        return f"redis+cluster://{hosts}"

    # ------------------------------------------------------------------ roles

    def live(self) -> list[Node]:
        """Returns the nodes that run and are not stopped."""
        return [node for node in self.nodes if node.is_live]

    def primaries(self) -> list[Node]:
        """Returns the nodes that serve slots, as most live nodes see it, in `nodes`' order."""
        owners = self.view().owners()
        return [node for node in self.nodes if node.id in owners]

    def replicas_of(self, primary: Node) -> list[Node]:
        """Returns the replicas of this primary; the live ones first."""
        pairs = self.view().primaries
        found = [node for node in self.nodes if (node.id, primary.id) in pairs]
        return sorted(found, key=lambda node: not node.is_live)

    def replica_of(self, primary: Node) -> Node:
        """Returns a replica of this primary. Raises LookupError if it has none."""
        for found in self.replicas_of(primary):
            return found
        raise LookupError(f"{primary} has no replica")

    def primary_of(self, replica: Node) -> Node:
        """Returns the primary that this replica follows. Raises LookupError if it is no replica."""
        for node, primary in self.view().primaries:
            if node == replica.id:
                return self._node(primary)
        raise LookupError(f"{replica} is no replica")

    def owner(self, place: str | bytes | int) -> Node:
        """Returns the primary of a key or a slot. Raises LookupError if no node serves it."""
        found = self.view().slots[slot_of(place)]
        if found == NO_NODE:
            raise LookupError(f"no node serves the slot of {place!r}")
        return self._node(found)

    def view(self) -> View:
        """Returns the cluster as most of the live nodes see it."""
        return Counter(self._views()).most_common(1)[0][0]

    def _views(self) -> list[View]:
        found = []
        for node in self.live():
            with contextlib.suppress(redis.RedisError):
                found.append(View.read(node.ask("CLUSTER", "NODES")))
        if not found:
            raise LookupError("no node answers")
        return found

    def _node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    # ------------------------------------------------------------------ damage and repair

    def kill(self, node: Node) -> None:
        """Kills the node without warning."""
        node.process.kill()
        node.process.wait()
        node.stopped = False

    def stop(self, node: Node) -> None:
        """Stops the process: it answers no client, and its connections stay open."""
        node.stopped = True
        node.process.send_signal(signal.SIGSTOP)

    def cont(self, node: Node) -> None:
        """Continues the stopped process."""
        node.process.send_signal(signal.SIGCONT)
        node.stopped = False

    def restart(self, node: Node) -> None:
        """Starts the node again in its own folder; returns when it answers.

        Without an append-only file it is empty then.
        """
        self.kill(node)
        node.start()
        wait_until(node.answers, OK_S, why=f"{node} answers again")

    def failover(self, replica: Node, how: str = "") -> None:
        """Makes this replica take its primary's place; `how` may be FORCE or TAKEOVER.

        Returns when the live nodes agree about it.
        """
        if node_is_primary(replica):
            return
        asked = 0.0

        def is_promoted() -> bool:
            nonlocal asked
            if node_is_primary(replica):
                return True
            if time.monotonic() - asked > MANUAL_S:
                # A primary gets one vote in two node timeouts: the command is repeated.
                replica.ask("CLUSTER", "FAILOVER", *([how] if how else []))
                asked = time.monotonic()
            return False

        wait_until(is_promoted, OK_S, why=f"{replica} is promoted")
        self.wait_ok()

    def wait_ok(self, timeout: float = OK_S) -> None:
        """Returns when every slot is served by a live node, and all live nodes agree.

        Also, every live replica has a link to its primary. When the source of a move died in the
        middle, this needs the move to be made again: until then a target of Redis, but not of
        Valkey, refuses everything.
        """
        try:
            wait_until(self.is_ok, timeout, every=0.02, why="the cluster is whole")
        except AssertionError as error:
            error.add_note(self.describe())
            raise

    def is_ok(self) -> bool:
        """Returns True if `wait_ok` would return now."""
        live = self.live()
        try:
            infos = [node.ask("CLUSTER", "INFO") for node in live]
            seen = [View.read(node.ask("CLUSTER", "NODES")) for node in live]
        except redis.RedisError:
            return False
        known = {node.id for node in live}
        views = {view._replace(failing=frozenset()) for view in seen}
        if len(views) != 1 or any(view.failing & known for view in seen):
            return False
        owners = set(seen[0].slots)
        return (
            all("cluster_state:ok" in info for info in infos)
            and owners <= known
            and all(_plays_its_part(node, owners) for node in live)
        )

    def describe(self) -> str:
        """Returns how each node sees the cluster, for a failed test."""
        found = []
        for node in self.nodes:
            try:
                said = node.ask("CLUSTER", "NODES") if node.is_live else "not running"
            except redis.RedisError as error:
                said = repr(error)
            found.append(f"--- {node}\n{said}")
        return "\n".join(found)

    # ------------------------------------------------------------------ resharding

    def move_slot(self, slot: int, target: Node) -> int:
        """Moves a slot with all its keys to another primary; returns how many keys moved.

        When it was cut off by a failover, it may be called again, with the primary that holds
        what was moved already.
        """
        if not self.begin_move(slot, target):
            return 0
        moved = self.move_keys(slot)
        self.finish_move(slot)
        return moved

    def begin_move(self, slot: int, target: Node) -> bool:
        """Begins a move: the source answers ASK for keys it lacks. False if already moved."""
        source = self.owner(slot)
        if source is target:
            return False
        if not _has_owner(target, slot, source):
            # It imports from a node that died since, and keeps that owner until it is set.
            target.ask("CLUSTER", "SETSLOT", slot, "STABLE")
            wait_until(
                lambda: _has_owner(target, slot, source),
                OK_S,
                why=f"{target} has {source} as the owner",
            )
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)
        self._moves[slot] = source, target
        return True

    def move_keys(self, slot: int, most: int | None = None) -> int:
        """Moves the keys of a slot whose move has begun, or at most so many; returns how many."""
        source, target = self._moves[slot]
        moved = 0
        while most is None or moved < most:
            count = BATCH if most is None else min(BATCH, most - moved)
            names = source.ask("CLUSTER", "GETKEYSINSLOT", slot, count)
            if not names:
                break
            words = ["MIGRATE", target.host, target.port, "", 0, MIGRATE_MS, "REPLACE"]
            source.ask(*words, *_login(source), "KEYS", *names)
            moved += len(names)
        return moved

    def finish_move(self, slot: int) -> None:
        """Makes the target the slot's owner for every live primary; the source must be empty."""
        source, target = self._moves.pop(slot)
        others = [node for node in self.live() if node not in (source, target)]
        for node in (target, source, *others):
            if node_is_primary(node):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        wait_until(lambda: self._all_know(slot, target), OK_S, why=f"slot {slot} is at {target}")

    def undo_move(self, slot: int) -> None:
        """Undoes a move: the slot stays at the source, and the moved keys return there.

        Until then it is missing for the source: nothing else may be at work.
        """
        source, target = self._moves.pop(slot)
        source.ask("CLUSTER", "SETSLOT", slot, "STABLE")
        self._moves[slot] = target, source
        self.move_keys(slot)
        self._moves.pop(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "STABLE")

    def _all_know(self, slot: int, target: Node) -> bool:
        return all(view.slots[slot] == target.id for view in self._views())

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Ends every process, by its id."""
        for node in self.nodes:
            if hasattr(node, "process"):
                node.process.kill()
                node.process.wait()
                node.control.close()


def slot_of(place: str | bytes | int) -> int:
    """Returns the hash slot of a key; a number is a slot already."""
    if isinstance(place, int):
        return place
    return key_slot(place if isinstance(place, bytes) else place.encode())


def node_is_primary(node: Node) -> bool:
    """Returns True if the node reports itself as a primary."""
    return bool(node.ask("ROLE")[0] == b"master")


def _has_owner(node: Node, slot: int, owner: Node) -> bool:
    """Returns True if the slot has that owner for this node, and all slots are served there."""
    view = View.read(node.ask("CLUSTER", "NODES"))
    return view.slots[slot] == owner.id and "cluster_state:ok" in node.ask("CLUSTER", "INFO")


def _plays_its_part(node: Node, owners: set[str]) -> bool:
    """Returns whether a node works in its role: a replica must have its link to a primary."""
    try:
        role = node.ask("ROLE")
    except redis.RedisError:
        return False
    if node.id in owners:
        return bool(role[0] == b"master")
    return bool(role[0] == b"master" or role[3] == b"connected")


def _login(node: Node) -> list[str]:
    """Returns the credentials that MIGRATE needs at the target: all nodes have the same users."""
    if "password" not in node.access:
        return []
    return ["AUTH2", node.access.get("username", "default"), node.access["password"]]


@contextlib.contextmanager
def run_cluster(
    primaries: int = 3,
    replicas: int = 3,
    *options: str,
    node_timeout_ms: int = 2_000,
    appendonly: bool = False,
    binary: ServerBinary | None = None,
    security: Security | None = None,
) -> Iterator[Cluster]:
    """Runs a cluster, ready for writes; more options are those of redis-server, for every node.

    There are `replicas` in all: the first follows the first primary, and so on around. With
    `security` (see make_security) the nodes and their clients speak TLS and have users.
    """
    settings = ["--cluster-node-timeout", str(node_timeout_ms)]
    settings += ["--appendonly", "yes" if appendonly else "no", *options]
    with tempfile.TemporaryDirectory(prefix="fl-c-", ignore_cleanup_errors=True) as folder:
        program = binary or (server_process.find_secure() if security else find_server())
        cluster = _start(Path(folder), primaries, replicas, settings, program, security)
        try:
            cluster.wait_ok()
            yield cluster
        finally:
            cluster.close()


def _start(
    root: Path,
    primaries: int,
    replicas: int,
    settings: Sequence[str],
    binary: ServerBinary,
    security: Security | None,
) -> Cluster:
    """Starts all nodes; at other ports if these are in use."""
    for turn in range(TRIES):
        nodes = []
        for port in server_process.free_ports(primaries + replicas):
            folder = root / f"{turn}-{port}"
            folder.mkdir()
            own = [*security.options(port), "--tls-cluster", "yes"] if security else []
            words = server_process.node_words(binary, folder, port, *own, *settings)
            access = security.access if security else {}
            nodes.append(Node(secrets.token_hex(20), port, folder, words, access))
        cluster = Cluster(nodes, security)
        try:
            start_all(nodes, primaries, binary)
        except BaseException:
            cluster.close()
            raise
        if all(node.is_live for node in nodes):
            return cluster
        cluster.close()
    raise RuntimeError("no cluster:\n" + "\n".join(node.log() for node in nodes))


def start_all(nodes: list[Node], primaries: int, binary: ServerBinary) -> None:
    """Starts linked nodes, the first ones as primaries; returns when each answers or has ended."""
    has_shards = binary.version >= SHARDS_SINCE
    for node in nodes:
        text = _known(nodes, node, primaries, has_shards=has_shards)
        (node.folder / "nodes.conf").write_text(text)
    for node in nodes:
        node.start()
    wait_until(partial(_settled, nodes), OK_S, why="each node answers, or one has ended")


def _settled(nodes: list[Node]) -> bool:
    return not all(node.is_live for node in nodes) or all(node.answers() for node in nodes)


def _known(nodes: list[Node], own: Node, primaries: int, *, has_shards: bool) -> str:
    """Returns the `nodes.conf` of one node: the address of each node."""
    lines = []
    for i, node in enumerate(nodes):
        flags = "master" if i < primaries else "slave"
        follows = "-" if i < primaries else nodes[(i - primaries) % primaries].id
        epoch = i % primaries + 1 if i < primaries else (i - primaries) % primaries + 1
        place = f"{node.host}:{node.port}@{node.port + server_process.BUS_OFFSET}"
        if has_shards:  # Valkey 9.1 ends at the first SPUBLISH if the file names no shard
            place += f",,shard-id={node.id if i < primaries else follows}"
        words = [node.id, place]
        words += [f"myself,{flags}" if node is own else flags, follows, "0", "0", str(epoch)]
        words.append("connected")
        if i < primaries:
            words.append(f"{i * SLOTS // primaries}-{(i + 1) * SLOTS // primaries - 1}")
        lines.append(" ".join(words))
    lines.append(f"vars currentEpoch {primaries} lastVoteEpoch 0")
    return "\n".join(lines) + "\n"
