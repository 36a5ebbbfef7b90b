"""What a server says of itself, judged: version, eviction, memory, persistence, replicas, timeouts.

Each judgement takes the facts of one node and gives one Check or none; nothing is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.protocol.server_info import release

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, WARN, BAD = "ok", "warn", "bad"
_OLDEST = {"Redis": (7, 0), "Valkey": (7, 2)}
# The first release of each line without CVE-2025-49844 (a Lua script may run any code).
_SAFE = {
    "Redis": {(7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
_FULL, _NEARLY = 0.95, 0.80
_MIB = 1 << 20
_NODE_BYTES = 4096  # what a stream reserves at first by default


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: `state` is ok, warn or bad; `remedy` is empty when all is well."""

    name: str
    state: str
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one node answered. `config` is None if this user may not read it."""

    info: dict[str, str]
    config: dict[str, str] | None
    cluster: dict[str, str] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """A number of INFO, 0 when it is missing."""
        text = self.info.get(name, "0")
        return int(float(text)) if text.replace(".", "", 1).lstrip("-").isdigit() else 0

    def setting(self, name: str) -> str | None:
        """A setting; None when it can't be read."""
        return None if self.config is None else self.config.get(name)


def judge(facts: Facts) -> Iterator[Check]:
    """Everything that can be said of one node."""
    for look in (
        _version,
        _eviction,
        _memory,
        _persistence,
        _writes,
        _replicas,
        _sockets,
        _streams,
    ):
        found = look(facts)
        if found is not None:
            yield found
    if facts.cluster:
        yield _cluster(facts.cluster)


def _version(facts: Facts) -> Check:
    name, version = release(facts.info)
    shown = f"{name} {'.'.join(map(str, version))}"
    if version < _OLDEST[name]:
        remedy = "upgrade to Redis 7.0, Valkey 7.2 or newer"
        return Check("version", BAD, f"{shown} is too old", remedy)
    line = version[:2]
    safe = _SAFE[name]
    if line > max(safe) or (line in safe and version[2:] >= (safe[line],)):
        return Check("version", OK, shown)
    first = min(other for other in safe if other >= line)
    fixed = f"{first[0]}.{first[1]}.{safe[first]}"
    return Check(
        "version",
        WARN,
        f"{shown} by its number lets any user that may run scripts run any code (CVE-2025-49844)",
        f"upgrade to {name} {fixed} or newer, unless your distribution has repaired this one; "
        "let only trusted users run EVAL",
    )


def _eviction(facts: Facts) -> Check:
    policy = facts.info.get("maxmemory_policy") or facts.setting("maxmemory-policy")
    if policy is None:
        return Check(
            "eviction", WARN, "the eviction policy is not readable", "see that it is noeviction"
        )
    if policy == "noeviction":
        return Check("eviction", OK, "noeviction")
    return Check(
        "eviction",
        BAD,
        f"maxmemory-policy is {policy}: a full Redis deletes keys, which loses work",
        "CONFIG SET maxmemory-policy noeviction, and in redis.conf",
    )


def _memory(facts: Facts) -> Check:
    used, most = facts.number("used_memory"), facts.number("maxmemory")
    shown = f"{used / _MIB:,.0f} MiB used"
    if not most:
        total = facts.number("total_system_memory")
        share = f" of {total / _MIB:,.0f} MiB of the machine" if total else ""
        if total and used > _NEARLY * total:
            return Check("memory", WARN, shown + share, "set maxmemory, or give it more memory")
        return Check("memory", OK, f"{shown}{share}, no maxmemory")
    shown += f" of {most / _MIB:,.0f} MiB ({used / most:.0%})"
    if used > _NEARLY * most:
        state = BAD if used > _FULL * most else WARN
        remedy = "raise maxmemory, add workers, or shorten the retention of results (--retain)"
        return Check("memory", state, shown, remedy)
    return Check("memory", OK, shown)


def _persistence(facts: Facts) -> Check:
    if facts.info.get("aof_enabled") == "1":
        sync = facts.setting("appendfsync")
        if sync in (None, "everysec", "always"):
            lost = {
                "everysec": ": a crash loses about a second",
                "always": ": a crash loses nothing",
            }
            return Check(
                "persistence", OK, f"AOF, fsync {sync or 'not readable'}{lost.get(sync or '', '')}"
            )
        what = f"AOF with appendfsync {sync}: a crash of the machine loses about half a minute"
        return Check("persistence", WARN, what, "CONFIG SET appendfsync everysec")
    if facts.setting("save") == "":
        what = "no AOF and no snapshots: a restart loses every request"
    elif facts.config is None:
        what = "no AOF, snapshots are not readable: a restart may lose what is younger"
    else:
        what = "snapshots only: a restart loses what is younger than the last one"
    return Check("persistence", WARN, what, "CONFIG SET appendonly yes, and in redis.conf")


def _writes(facts: Facts) -> Check | None:
    """Whether the last snapshot and the last append reached the disk."""
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if facts.info.get(name, "ok") != "ok"
    ]
    if not failed:
        return Check("disk", OK, "the last writes succeeded")
    what = f"{' and '.join(failed)} failed: Redis may refuse every write (MISCONF)"
    return Check(
        "disk", BAD, what, "look for a full disk or missing rights; the server's log says which"
    )


def _replicas(facts: Facts) -> Check:
    if facts.info.get("role", "master") != "master":
        what = "this is a replica, and can't be written to"
        return Check("replicas", BAD, what, "name the primary, or redis+sentinel:// which finds it")
    count = facts.number("connected_slaves")
    least = facts.setting("min-replicas-to-write")
    if not count:
        return Check("replicas", OK, "none: there is no failover")
    if least is None or least == "0":
        shown = "not readable" if least is None else "0"
        what = f"{count}; min-replicas-to-write is {shown}: a failover may lose the last writes"
        return Check(
            "replicas", OK if least is None else WARN, what, "set it to 1" if least else ""
        )
    return Check("replicas", OK, f"{count}, min-replicas-to-write {least}")


def _sockets(facts: Facts) -> Check:
    idle, alive = facts.setting("timeout"), facts.setting("tcp-keepalive")
    if idle is None:
        return Check("timeouts", OK, "the server's timeouts are not readable")
    longest = settings.SOCKET_TIMEOUT_S
    if 0 < int(idle) <= longest:
        what = f"the server closes what is idle for {idle} s, calls may take {longest:g} s"
        return Check("timeouts", WARN, what, "CONFIG SET timeout 0, or at least 60")
    if alive == "0":
        what = "tcp-keepalive is 0: the server never notices a client that is cut off"
        return Check("timeouts", WARN, what, "CONFIG SET tcp-keepalive 300")
    closes = f"closes after {idle} s idle" if int(idle) else "never closes idle connections"
    return Check(
        "timeouts", OK, f"the server {closes}, tcp-keepalive {alive} s; ours {longest:g} s"
    )


def _streams(facts: Facts) -> Check | None:
    size = facts.setting("stream-node-max-bytes")
    if size is None or not size.isdigit():
        return None
    if int(size) < _NODE_BYTES:
        return Check(
            "streams", OK, f"stream-node-max-bytes {size}: small requests take less memory"
        )
    what = f"stream-node-max-bytes {size}: a request of more than 1 KiB takes about "
    return Check("streams", OK, f"{what}{int(size) // 1024 + 1} KiB at least")


def _cluster(cluster: dict[str, str]) -> Check:
    state, covered = cluster.get("cluster_state", "?"), cluster.get("cluster_slots_ok", "?")
    shown = f"cluster state {state}, {covered} of 16384 slots served"
    if state == "ok" and covered == "16384":
        return Check("cluster", OK, shown)
    remedy = "redis-cli --cluster check NODE names the slots; --cluster fix serves them"
    return Check("cluster", BAD if state != "ok" else WARN, shown, remedy)
