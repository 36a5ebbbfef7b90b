"""Routes a step: the key that decides, and the map from hash slots to a cluster's nodes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from redis.crc import key_slot

from fairlane.errors import InvalidArgument
from fairlane.protocol.steps import Arg, Call, Command

if TYPE_CHECKING:
    from collections.abc import Callable


Address = tuple[str, int]
_KEYLESS = frozenset({b"TIME", b"INFO", b"SUBSCRIBE"})
_READS = frozenset({b"XREAD", b"XREADGROUP"})
_KEY_AT: dict[Arg, int] = {
    b"XINFO": 2,
    b"XGROUP": 2,
    b"MEMORY": 2,
    b"LMPOP": 2,
    b"BLMPOP": 3,
}  # else 1


def key_of(step: Command | Call[Any]) -> bytes | None:
    """Returns the key whose slot decides where the step goes; None if any node will do."""
    if isinstance(step, Call):
        return step.keys[0]
    args = step.args
    if args[0] in _KEYLESS:
        return None
    is_read = args[0] in _READS
    at = args.index(b"STREAMS") + 1 if is_read else _KEY_AT.get(args[0], 1)
    return _as_bytes(args[at])


def _as_bytes(arg: Arg) -> bytes:
    return arg if isinstance(arg, bytes) else str(arg).encode()


def group(
    keys: dict[int, bytes | None], home: Callable[[bytes], Address | None]
) -> list[tuple[bytes | None, list[int]]]:
    """Groups the steps of a batch by node: (a key of that node, indexes in their order).

    `keys`: by index, the key that decides. While the nodes are unknown, steps are grouped by slot.
    """
    groups: dict[Address | int | None, tuple[bytes | None, list[int]]] = {}
    for index, key in keys.items():
        node = None if key is None else home(key) or key_slot(key)
        groups.setdefault(node, (key, []))[1].append(index)
    return list(groups.values())


def address(text: str) -> Address:
    """Reads `host:port`. Raises InvalidArgument."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidArgument(f"Redis node {text!r} is not valid: host:port is expected")
    return host.strip("[]"), int(port)  # [::1] is ::1


class SlotMap:
    """Maps slots to primaries, as read from the reply to CLUSTER SLOTS."""

    def __init__(self, reply: list[Any], asked: str) -> None:
        ranges = sorted((row[0], row[1], row[2]) for row in reply)
        self._starts = [first for first, _, _ in ranges]
        self._ends = [last for _, last, _ in ranges]
        # If a node reports no name of its own, we use the name under which we reached it.
        self._homes: list[Address] = [
            ((home[0] or b"").decode() or asked, home[1]) for _, _, home in ranges
        ]

    @property
    def nodes(self) -> list[Address]:
        """Returns every primary once."""
        return list(dict.fromkeys(self._homes))

    def home(self, key: bytes) -> Address | None:
        """Returns the primary of the key's slot; None if no node serves it."""
        slot = key_slot(key)
        at = bisect_right(self._starts, slot) - 1
        return self._homes[at] if at >= 0 and slot <= self._ends[at] else None
