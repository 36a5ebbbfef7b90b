"""Hands messages over from one list to several, through a pending list.

A message is pushed only by the script that removes it from the pending list. So any process may
hand over what is pending, also what a process that died has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from fairlane.common.xid import xid_of
from fairlane.errors import InvalidArgument
from fairlane.protocol import list_keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.list_keys import Namespace
    from fairlane.protocol.steps import Arg, Operation

BATCH = 100  # messages of one hand-over
_MOST_PUSHES = 10_000  # of one hand-over: more would keep the server from others for too long

To = Literal["all", "shortest"]


class Tracking(NamedTuple):
    """How messages are tracked: by which service, and the times of each message in seconds."""

    namespace: Namespace
    service: str
    timeout_s: int
    expire_s: int


class Route(NamedTuple):
    """The lists of a hand-over: each message goes `to` all of `outs`, or to the shortest one."""

    source: str
    pending: str
    outs: tuple[str, ...]
    to: To = "all"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns all lists."""
        return (self.source, self.pending, *self.outs)


class Backlog(NamedTuple):
    """How many messages wait in the source and in the pending list, and in each list behind."""

    waiting: int
    pending: int
    outs: tuple[int, ...]


def hand_over(
    route: Route, block_s: float, tracking: Tracking | None = None
) -> Operation[int | None]:
    """Hands over up to 100 messages and 1 MiB, oldest first; returns how many.

    None = no message was there. 0 = another process, or the first copy of a repeated call, has
    handed them over, so there may be more. If none is there, waits up to `block_s` seconds for one.
    Raises InvalidArgument if one of the keys holds no list; nothing is changed then.
    """
    messages = yield from _claim(route)
    if not messages and block_s > 0:
        source, pending = list_keys.raw(route.source), list_keys.raw(route.pending)
        yield Command(b"BLMOVE", source, pending, b"RIGHT", b"LEFT", block_s)
        messages = yield from _claim(route)
    if not messages:
        return None
    outs = [list_keys.raw(name) for name in route.outs]
    keys = [list_keys.raw(route.pending), *outs]
    rows: Sequence[Arg] = messages
    if tracking is not None:
        more, rows = yield from _tracked(messages, tracking.namespace)
        keys += more
    call = library().fan_out(
        keys,
        to=route.to,
        count=len(outs),
        service=tracking.service if tracking else "",
        timeout=tracking.timeout_s if tracking else 1,
        expire=tracking.expire_s if tracking else 1,
        rows=rows,
    )
    reply = yield from call.run()
    if reply.is_wrongtype:
        raise _no_list(keys[1 + reply.at])
    moved: int = reply.moved
    return moved


def _claim(route: Route) -> Operation[list[bytes]]:
    keys = list_keys.raw(route.source), list_keys.raw(route.pending)
    most = max(1, min(BATCH, _MOST_PUSHES // len(route.outs)))
    reply = yield from library().claim_messages(keys, most=most).run()
    if reply.is_wrongtype:
        raise _no_list(keys[reply.at])
    found: list[bytes] = reply.messages
    return found


def _no_list(key: bytes) -> InvalidArgument:
    name = key.decode("utf-8", "replace")
    return InvalidArgument(f"key {name} holds no list: name another, or delete what it holds")


def _tracked(
    messages: Sequence[bytes], namespace: Namespace
) -> Operation[tuple[list[bytes], list[Arg]]]:
    """Draws an id for each message; returns the keys and the rows of fan_out."""
    last: int = yield Command(b"INCRBY", namespace.last_message, len(messages))
    keys = [namespace.messages]
    rows: list[Arg] = []
    for number, message in enumerate(messages, last - len(messages) + 1):
        own = xid_of(message)
        keys += [namespace.message(str(number)), namespace.message_of(own.text)]
        rows += [message, number, own.text.encode("utf-8", "replace"), own.kind]
    return keys, rows


def read_backlog(route: Route) -> Operation[Backlog]:
    """Returns the lengths of all lists of a route."""
    lengths = yield Batch([Command(b"LLEN", list_keys.raw(name)) for name in route.names])
    return Backlog(lengths[0], lengths[1], tuple(lengths[2:]))
