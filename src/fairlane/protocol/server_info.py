"""The replies of INFO, CLUSTER INFO and TIME."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_info(text: bytes) -> dict[str, str]:
    """Returns the fields of INFO or CLUSTER INFO."""
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and line[0] != "#")


def time_ms(reply: Sequence[bytes]) -> int:
    """Returns the time in a reply of TIME, in ms."""
    seconds, micros = reply
    return int(seconds) * 1000 + int(micros) // 1000


async def time_at(key: bytes) -> int:
    """Returns the time of the server that has this key, in ms."""
    # A step without a key, as TIME, goes to the node of the step with a key.
    _, time = await Batch([Command(b"EXISTS", key), Command(b"TIME")])
    return time_ms(time)


def release(info: dict[str, str]) -> tuple[str, tuple[int, ...]]:
    """Returns the program of a server and its version: ("Redis" or "Valkey", numbers)."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    text = info.get("valkey_version") or info.get("redis_version", "0")
    parts = (part for part in text.split(".") if part.isdigit())
    return name, tuple(map(int, parts))[:3]
