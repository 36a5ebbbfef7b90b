"""The keys beside a person's lists: what a service records under its namespace.

The names are those that the README of mpush describes; its program puts `service:` before those of
services. A list keeps the name that a person gave it. In a cluster a hash tag, `{orders}:in`, puts
all of them into one slot.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fairlane.errors import InvalidArgument

_LONGEST = 512  # bytes of a name
_SHOWN_MOST = 60  # characters of a refused name
_FORWARD = re.compile(rb"(?:\{([^{}]+)\}|(.+)):forward", re.DOTALL)
_TAG = re.compile(r"^[^{]*\{[^}]+\}")  # what Redis reads as a hash tag


def check_list(kind: str, name: str) -> str:
    """Returns `name` if it can be the name of a list. Raises InvalidArgument, which names `kind`.

    A brace must be a part of a hash tag, because a key beside the list has to be in its slot.
    """
    shown = repr(name)
    if not isinstance(name, str) or not 1 <= len(name.encode(errors="replace")) <= _LONGEST:
        if isinstance(name, str) and len(name) > _SHOWN_MOST:
            shown = f"{name[:_SHOWN_MOST]!r}... ({len(name):,} characters)"
        raise InvalidArgument(
            f"{kind} {shown} is not valid: a name of 1 to {_LONGEST} bytes is expected"
        )
    if ("{" in name or "}" in name) and not _TAG.match(name):
        raise InvalidArgument(
            f"{kind} {shown} is not valid: its brace begins no hash tag such as {{orders}}:in"
        )
    return name


def raw(name: str) -> bytes:
    """Returns a list's name as Redis has it; a name from the command line may hold any bytes."""
    return name.encode("utf-8", "surrogateescape")


def pending(source: str) -> str:
    """`<list>:pending`: where messages wait between their list and the lists that get them."""
    return f"{source}:pending"


def _beside(name: str, what: str) -> bytes:
    """Returns a key in the slot of the list."""
    return raw(f"{name}:{what}" if _TAG.match(name) else f"{{{name}}}:{what}")


def in_flight(source: str) -> bytes:
    """`{<list>}:forwarding`: list of messages that left their list and are not settled."""
    return _beside(source, "forwarding")


def forward_state(source: str) -> bytes:
    """`{<list>}:forward`: hash, which forwarder is active, and how far it is."""
    return _beside(source, "forward")


def forwarded_list(key: bytes) -> str | None:
    """Returns the list whose `forward_state` this key is; None for a key of another shape."""
    match = _FORWARD.fullmatch(key)
    name = (match[1] or match[2]).decode("utf-8", "surrogateescape") if match else ""
    return name if name and forward_state(name) == key else None


def landed(target: str) -> bytes:
    """`{<list>}:landed`: hash, the last number that came from each source."""
    return _beside(target, "landed")


def balanced(name: str, op: str) -> bytes:
    """`{<list>}:balanced:<op>`: string with a TTL, what became of one push to the shortest list."""
    return _beside(name, f"balanced:{op}")


def tag_of(name: str) -> str:
    """Returns what decides the slot of a list: its hash tag, or its whole name."""
    found = _TAG.match(name)
    return found[0].partition("{")[2][:-1] if found else name


class Namespace(NamedTuple):
    """The keys of services and of the messages that they track, as `demo:mpush:ids`."""

    name: str

    def _key(self, rest: str) -> bytes:
        return raw(f"{self.name}:{rest}")

    def has(self, name: str) -> bool:
        """Returns True if a list of this name would be one of these keys."""
        before, _, rest = name.partition(f"{self.name}:")
        is_own = rest in {"id", "ids"} or rest.isdecimal()
        return not before and (is_own or rest.startswith(("message:", "metrics:")))

    @property
    def last_id(self) -> bytes:
        """`<namespace>:id`: the number of services so far."""
        return self._key("id")

    @property
    def ids(self) -> bytes:
        """`<namespace>:ids`: list of services, newest first."""
        return self._key("ids")

    def service(self, service_id: str) -> bytes:
        """`<namespace>:<id>`: hash with a TTL, one live service."""
        return self._key(service_id)

    @property
    def last_message(self) -> bytes:
        """`<namespace>:message:id`: the number of messages so far."""
        return self._key("message:id")

    @property
    def messages(self) -> bytes:
        """`<namespace>:message:ids`: list of messages that were handed over, newest first."""
        return self._key("message:ids")

    @property
    def settled(self) -> bytes:
        """`<namespace>:message:settled`: set of ids that are counted and still in that list."""
        return self._key("message:settled")

    @property
    def done(self) -> bytes:
        """`<namespace>:message:done`: list to which consumers push the ids of what they did."""
        return self._key("message:done")

    def message(self, message_id: str) -> bytes:
        """`<namespace>:message:<id>`: hash with a TTL, one tracked message."""
        return self._key(f"message:{message_id}")

    def message_of(self, xid: str) -> bytes:
        """`<namespace>:message:xid:<xid>`: hash with a TTL, the id of the message of this xid."""
        return self._key("message:xid:") + xid.encode("utf-8", "replace")

    def metrics(self, name: str) -> bytes:
        """`<namespace>:metrics:<name>`: hash of count, and for `done` of sum and max."""
        return self._key(f"metrics:{name}")
