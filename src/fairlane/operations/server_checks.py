"""The checks of a server: version, eviction, memory, persistence, replicas, timeouts.

Each takes the facts of one node and returns one Finding or None, without I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.text import MAKE_ROOM, exact, format_duration, size
from fairlane.errors import FairlaneError
from fairlane.operations.check_result import BAD, OK, WARN, Finding
from fairlane.operations.tokens import marker_ms
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields
from fairlane.protocol.server_info import read_info, release
from fairlane.protocol.steps import Batch, Command, OnNode, run_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_OLDEST = {"Redis": (7, 0), "Valkey": (7, 2)}
# The first release of each line without CVE-2025-49844 (a Lua script may run any code).
_SAFE = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_FULL, _NEARLY = 0.95, 0.80
_RECENT_S = 3600
_MIB = 1 << 20
_NODE_BYTES = 4096  # what a stream allocates at first by default


@dataclass(frozen=True, slots=True)
class Facts:
    """What one node reported. `config` is None if this user may not read it."""

    info: dict[str, str]
    config: dict[str, str] | None
    cluster: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """Returns a number of INFO, 0 if it is missing."""
        text = self.info.get(name, "0")
        return int(float(text)) if text.replace(".", "", 1).lstrip("-").isdigit() else 0

    def setting(self, name: str) -> str | None:
        """Returns a setting; None if it can't be read."""
        return None if self.config is None else self.config.get(name)


def judge(facts: Facts) -> Iterator[Finding]:
    """Yields the findings that follow from the facts of one node."""
    for check in SERVER:
        found = check(facts)
        if found is not None:
            yield found
    if facts.cluster:
        yield _cluster(facts.cluster)


def _version(facts: Facts) -> Finding:
    name, version = release(facts.info)
    shown = f"{name} {'.'.join(map(str, version))}"
    if version < _OLDEST[name]:
        remedy = "upgrade to Redis 7.0, Valkey 7.2 or newer"
        return Finding("version", BAD, f"{shown} is too old", remedy)
    line = version[:2]
    safe = _SAFE[name]
    if line > max(safe) or (line in safe and version[2:] >= (safe[line],)):
        return Finding("version", OK, shown)
    first = min(other for other in safe if other >= line)
    fixed = f"{first[0]}.{first[1]}.{safe[first]}"
    return Finding(
        "version",
        WARN,
        f"{shown} by its number lets any user that may run scripts run any code (CVE-2025-49844)",
        f"upgrade to {name} {fixed} or newer, unless your distribution has fixed this one; "
        "let only trusted users run EVAL",
    )


def _eviction(facts: Facts) -> Finding:
    policy = facts.info.get("maxmemory_policy") or facts.setting("maxmemory-policy")
    if policy is None:
        return Finding(
            "eviction", WARN, "the eviction policy is not readable", "see that it is noeviction"
        )
    if policy == "noeviction":
        return Finding("eviction", OK, "noeviction")
    return Finding(
        "eviction",
        BAD,
        f"maxmemory-policy is {policy}: a full Redis deletes keys, which loses work",
        "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
    )


def _memory(facts: Facts) -> Finding:
    used, most = facts.number("used_memory"), facts.number("maxmemory")
    shown = f"{used / _MIB:,.0f} MiB used"
    if not most:
        total = facts.number("total_system_memory")
        share = f" of {total / _MIB:,.0f} MiB of the machine" if total else ""
        if total and used > _NEARLY * total:
            return Finding("memory", WARN, shown + share, "set maxmemory, or give it more memory")
        return Finding("memory", OK, f"{shown}{share}, no maxmemory")
    shown += f" of {most / _MIB:,.0f} MiB ({used / most:.0%})"
    if used > _NEARLY * most:
        state = BAD if used > _FULL * most else WARN
        remedy = (
            f"make room with {MAKE_ROOM}; raise maxmemory, add workers, or shorten the retention "
            "of results (--retain)"
        )
        return Finding("memory", state, shown, remedy)
    return Finding("memory", OK, shown)


def _persistence(facts: Facts) -> Finding:
    if facts.info.get("aof_enabled") == "1":
        sync = facts.setting("appendfsync")
        if sync in (None, "everysec", "always"):
            lost = {
                "everysec": ": a crash loses about a second",
                "always": ": a crash loses nothing",
            }
            return Finding(
                "persistence", OK, f"AOF, fsync {sync or 'not readable'}{lost.get(sync or '', '')}"
            )
        what = f"AOF with appendfsync {sync}: a crash of the machine loses about half a minute"
        return Finding("persistence", WARN, what, "CONFIG SET appendfsync everysec")
    if facts.setting("save") == "":
        what = "no AOF and no snapshots: a restart loses every request"
    elif facts.config is None:
        what = "no AOF, snapshots are not readable: a restart may lose what is younger"
    else:
        what = "snapshots only: a restart loses what is younger than the last one"
    return Finding("persistence", WARN, what, "CONFIG SET appendonly yes, and in redis.conf")


def _restart(facts: Facts) -> Finding | None:
    """Finds a server that has started recently without a file of what it had."""
    up_s = facts.number("uptime_in_seconds")
    if facts.info.get("aof_enabled") == "1" or not 0 < up_s < _RECENT_S:
        return None
    what = (
        f"Redis started {format_duration(1000 * up_s)} ago without an append-only file: what was "
        "not in its last snapshot is gone, if it ran before"
    )
    remedy = (
        "fairlane doctor --repair, then submit again, with the same ids, what fairlane status ID "
        "does not find"
    )
    return Finding("restart", WARN, what, remedy)


def _writes(facts: Facts) -> Finding | None:
    """Checks whether the last snapshot and the last append reached the disk."""
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if facts.info.get(name, "ok") != "ok"
    ]
    if not failed:
        return Finding("disk", OK, "the last writes succeeded")
    what = f"{' and '.join(failed)} failed: Redis may refuse every write (MISCONF)"
    return Finding(
        "disk", BAD, what, "look for a full disk or missing rights; the server's log says which"
    )


def _replicas(facts: Facts) -> Finding:
    if facts.info.get("role", "master") != "master":
        what = "this is a replica, and can't be written to"
        return Finding(
            "replicas", BAD, what, "name the primary, or redis+sentinel:// which finds it"
        )
    count = facts.number("connected_slaves")
    least = facts.setting("min-replicas-to-write")
    if not count:
        return Finding("replicas", OK, "none: there is no failover")
    if least is None or least == "0":
        shown = "not readable" if least is None else "0"
        what = f"{count}; min-replicas-to-write is {shown}: a failover may lose the last writes"
        return Finding(
            "replicas", OK if least is None else WARN, what, "set it to 1" if least else ""
        )
    return Finding("replicas", OK, f"{count}, min-replicas-to-write {least}")


def _sockets(facts: Facts) -> Finding:
    idle, alive = facts.setting("timeout"), facts.setting("tcp-keepalive")
    if idle is None:
        return Finding("timeouts", OK, "the server's timeouts are not readable")
    longest = settings.SOCKET_TIMEOUT_S
    if 0 < int(idle) <= longest:
        what = f"the server closes what is idle for {idle} s, calls may take {exact(longest)} s"
        return Finding("timeouts", WARN, what, "CONFIG SET timeout 0, or at least 60")
    if alive == "0":
        what = "tcp-keepalive is 0: the server never notices a client that is cut off"
        return Finding("timeouts", WARN, what, "CONFIG SET tcp-keepalive 300")
    closes = f"closes after {idle} s idle" if int(idle) else "never closes idle connections"
    return Finding(
        "timeouts", OK, f"the server {closes}, tcp-keepalive {alive} s; ours {exact(longest)} s"
    )


def _streams(facts: Facts) -> Finding | None:
    size = facts.setting("stream-node-max-bytes")
    if size is None or not size.isdigit():
        return None
    if int(size) < _NODE_BYTES:
        return Finding(
            "streams", OK, f"stream-node-max-bytes {size}: small requests take less memory"
        )
    what = f"stream-node-max-bytes {size}: a request of more than 1 KiB takes about "
    return Finding("streams", OK, f"{what}{int(size) // 1024 + 1} KiB at least")


def _cluster(cluster: dict[str, str]) -> Finding:
    state, covered = cluster.get("cluster_state", "?"), cluster.get("cluster_slots_ok", "?")
    shown = f"cluster state {state}, {covered} of 16384 slots served"
    if state == "ok" and covered == "16384":
        return Finding("cluster", OK, shown)
    remedy = "redis-cli --cluster check NODE names the slots; --cluster fix serves them"
    return Finding("cluster", BAD if state != "ok" else WARN, shown, remedy)


SERVER = (
    _version,
    _eviction,
    _memory,
    _persistence,
    _restart,
    _writes,
    _replicas,
    _sockets,
    _streams,
)


# ------------------------------------------------------------------ size checks
# Checks the memory that requests of a queue take: blocks of streams, results that are kept.
#
# It only reads, and its cost is bounded.


GOOD_BYTES = 2048  # docs/concepts/sizing.md says why
_MOST = 500  # requests read
_MANY = 100  # so many small ones are a finding
_SMALL = 20  # sub-requests of a small one
_ENDINGS = 100  # how many of the last ended requests are read
_STEPS = 5  # for each ended request
_MARKER_BYTES = 150
_RATE_OVER_S = 60.0  # the shortest time for a rate: a burst is no rate
_SLOW_RATE = 10  # requests a second; below it a rate has a decimal


async def small_requests(queue: str, nodes: Sequence[Any]) -> list[Finding]:
    """Finds many requests that take more memory than their content; `nodes[0]` has the setting."""
    name = b"stream-node-max-bytes"
    try:
        _, size = await OnNode(nodes[0], Command(b"CONFIG", b"GET", name))
    except (FairlaneError, ValueError):  # not readable
        return []
    if int(size) <= GOOD_BYTES:
        return []
    ids = await Command(b"ZRANGE", keys.active(queue), 0, _MOST - 1)
    streams = [keys.request_keys(one.decode("utf-8", "replace"))[0] for one in ids]
    lengths = await run_each([Command(b"XLEN", stream) for stream in streams])
    found = sum(isinstance(length, int) and 0 < length <= _SMALL for length in lengths)
    if found < _MANY:
        return []
    what = (
        f"{found} of {len(ids)} requests have at most {_SMALL} sub-requests in a stream, "
        f"which sets {int(size) // 1024} KiB aside for them, and as much again for their results"
    )
    remedy = f"CONFIG SET stream-node-max-bytes {GOOD_BYTES}, and in redis.conf"
    return [Finding("small requests", WARN, what, remedy)]


class Left(NamedTuple):
    """What one ended request leaves: how many bytes, and for how many ms."""

    retain_ms: int
    size: int

    @property
    def byte_seconds(self) -> float:
        """Returns the memory that one such request a second takes in the end, with its marker."""
        marker = (self.retain_ms + marker_ms(self.retain_ms)) * _MARKER_BYTES
        return (self.retain_ms * self.size + marker) / 1000


async def retention(queue: str, nodes: Sequence[Any]) -> list[Finding]:
    """Warns if ended requests, at the recent rate, fill the memory before they expire."""
    rate, ended = await _endings(queue)
    left = await _left_by(ended)
    if not left:
        return []
    try:
        memory = await _key_memory(nodes)
    except FairlaneError:  # not readable
        return []
    need = rate * mean(one.byte_seconds for one in left)
    if not memory or need <= memory:
        return []
    shown = f"{rate:,.0f}" if rate >= _SLOW_RATE else f"{rate:.1f}"
    bytes_each, kept_ms = mean(one.size for one in left), mean(one.retain_ms for one in left)
    kept = format_duration(int(kept_ms))
    what = (
        f"{shown} requests end a second, and each keeps {size(bytes_each)} for {kept}"
        f": that grows to {size(need)}, and the memory is {size(memory)}"
    )
    remedy = (
        "shorten the retention of results (--retain 0s to 366d), make room with fairlane delete "
        "--state ended, or give Redis more memory"
    )
    return [Finding("retention", WARN, what, remedy)]


async def _endings(queue: str) -> tuple[float, list[str]]:
    """Returns how many requests end a second, and the last of them."""
    log = keys.completed(queue)
    count, first, last, (seconds, _) = await Batch(
        [
            Command(b"XLEN", log),
            Command(b"XRANGE", log, b"-", b"+", b"COUNT", 1),
            Command(b"XREVRANGE", log, b"+", b"-", b"COUNT", _ENDINGS),
            Command(b"TIME"),
        ]
    )
    if not first:
        return 0.0, []
    since_s = int(first[0][0].partition(b"-")[0]) / 1000
    rows = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in last]
    names = [row.get(b"id", b"").decode("utf-8", "replace") for row in rows]
    return count / max(int(seconds) - since_s, _RATE_OVER_S), list(dict.fromkeys(names))


async def _left_by(ended: Sequence[str]) -> list[Left]:
    """Returns what these requests left, as far as it has not expired and may be read."""
    steps: list[Command] = []
    for name in ended:
        kept = (keys.request_hash(name), keys.results(name), keys.dead(name), keys.errors(name))
        steps += [hmget(name, "retain_ms"), *(Command(b"MEMORY", b"USAGE", key) for key in kept)]
    replies = await run_each(steps)
    found = []
    for at in range(0, len(replies), _STEPS):
        policy, *sizes = replies[at : at + _STEPS]
        if any(isinstance(reply, FairlaneError) for reply in (policy, *sizes)):
            continue
        (retain_ms,) = parse_fields(("retain_ms",), policy)
        if retain_ms:
            kept_ms = max(int(retain_ms), settings.LEAST_TOMBSTONE_MS)
            found.append(Left(kept_ms, sum(size or 0 for size in sizes)))
    return found


async def _key_memory(nodes: Sequence[Any]) -> int:
    """Returns how many bytes all nodes may use: each its maxmemory, or all of its machine."""
    total = 0
    for node in nodes:
        facts = Facts(read_info(await OnNode(node, Command(b"INFO", b"memory"))), None)
        total += facts.number("maxmemory") or facts.number("total_system_memory")
    return total
