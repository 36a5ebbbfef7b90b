"""Reads from INFO whether a server is fit for Fairlane."""

from __future__ import annotations

from fairlane.errors import (
    RedisUnfit,
)
from fairlane.protocol.lua import Dialect, is_in_cluster

OLDEST = (7, 0)
WAITAOF_SINCE = (7, 2)


def check_fitness(info: bytes | str, place: str) -> Dialect:
    """Returns the dialect of scripts for the server of this INFO. Raises RedisUnfit."""
    fields, version = _info_fields(info)
    if version < OLDEST:
        raise RedisUnfit(
            f"Redis at {place} is version {fields.get('redis_version', '?')}, which is too old: "
            "upgrade it to Redis 7.0, Valkey 7.2 or newer"
        )
    if fields.get("arch_bits") == "32":  # its Lua makes text of whole numbers up to 2^31 only
        raise RedisUnfit(f"Redis at {place} is a 32-bit program: Fairlane needs a 64-bit one")
    policy = fields.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise RedisUnfit(
            f"Redis at {place} evicts keys (maxmemory-policy {policy}), which loses work: "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return Dialect.of(fields)


def has_waitaof(info: bytes | str) -> bool:
    """Returns True if the server of this INFO can confirm that its append-only file is on disk."""
    fields, version = _info_fields(info)
    return version >= WAITAOF_SINCE and fields.get("aof_enabled") == "1"


def names_replica(info: bytes | str, url: str) -> bool:
    """Returns True if `url` names the server of this INFO and it is a replica now."""
    finds_primary = "+" in url.partition(":")[0]
    return not finds_primary and _info_fields(info)[0].get("role") == "slave"


def is_cluster(info: bytes | str) -> bool:
    """Returns True if the server of this INFO refuses a script with keys in several slots."""
    return is_in_cluster(_info_fields(info)[0])


def _info_fields(info: bytes | str) -> tuple[dict[str, str], tuple[int, ...]]:
    """Returns INFO as a dict, and the server's version."""
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else info
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return fields, tuple(int(part) for part in fields.get("redis_version", "0.0").split(".")[:2])
