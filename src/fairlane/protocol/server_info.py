"""The replies of INFO and CLUSTER INFO."""

from __future__ import annotations


def read_info(text: bytes) -> dict[str, str]:
    """The fields of INFO or CLUSTER INFO."""
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def release(info: dict[str, str]) -> tuple[str, tuple[int, ...]]:
    """Which server it is: ("Redis" or "Valkey", its version)."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = info.get("valkey_version") or info.get("redis_version", "0")
    parts = (part for part in text.split(".") if part.isdigit())
    return name, tuple(map(int, parts))[:3]
