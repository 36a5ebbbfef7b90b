"""Registers services under a namespace, and counts which of their messages were done in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairlane.operations.batching import run_all
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.list_keys import Namespace
    from fairlane.protocol.steps import Operation

_PAGE = 500  # ids of one look at a list


class Settled(NamedTuple):
    """How many tracked messages were done in time, and how many were not."""

    done: int
    timed_out: int


class Service(NamedTuple):
    """A service that is registered, renewed `age_ms` ago. One that is not alive has expired."""

    id: str
    is_alive: bool
    host: str
    pid: str
    age_ms: int


def read_services(namespace: Namespace) -> Operation[list[Service]]:
    """Returns the services of a namespace, newest first; it changes nothing."""
    ids: list[bytes] = yield Command(b"LRANGE", namespace.ids, 0, -1)
    fields = (b"host", b"pid", b"renewed")
    looks = [Command(b"HMGET", namespace.service(_text(one)), *fields) for one in ids]
    rows = yield from run_all(looks)
    seconds, _ = yield Command(b"TIME")
    found = []
    for one, (host, pid, renewed) in zip(ids, rows, strict=True):
        age_ms = max(0, int(seconds) - int(renewed or 0)) * 1000
        found.append(
            Service(_text(one), host is not None, _text(host or b""), _text(pid or b""), age_ms)
        )
    return found


def register(
    namespace: Namespace, host: str, pid: int, expire_s: int, capacity: int
) -> Operation[str]:
    """Registers a service and returns its id. Services whose registration has expired go first."""
    ids: list[bytes] = yield Command(b"LRANGE", namespace.ids, 0, -1)
    if ids:
        looks = [Command(b"EXISTS", namespace.service(_text(one))) for one in ids]
        known = yield Batch(looks)
        gone = [one for one, is_known in zip(ids, known, strict=True) if not is_known]
        if gone:
            yield Batch([Command(b"LREM", namespace.ids, 0, one) for one in gone])
    number: int = yield Command(b"INCR", namespace.last_id)
    call = library().keep_service(
        (namespace.service(str(number)), namespace.ids),
        id=number,
        is_new="1",
        expire=expire_s,
        capacity=capacity,
        host=host,
        pid=pid,
    )
    yield from call.run()
    return str(number)


def renew(namespace: Namespace, service_id: str, expire_s: int) -> Operation[bool]:
    """Renews a registration; returns False if a person has deleted it, or it has expired."""
    call = library().keep_service(
        (namespace.service(service_id), namespace.ids),
        id=service_id,
        is_new="",
        expire=expire_s,
        capacity=0,
        host="",
        pid="",
    )
    is_ok: bool = (yield from call.run()).is_ok
    return is_ok


def has_services(namespace: Namespace) -> Operation[bool]:
    """Returns False if no service was ever registered: Redis has lost what it had."""
    return bool((yield Command(b"EXISTS", namespace.last_id)))


def unregister(namespace: Namespace, service_id: str) -> Operation[None]:
    """Ends a registration."""
    yield Batch(
        [
            Command(b"DEL", namespace.service(service_id)),
            Command(b"LREM", namespace.ids, 0, service_id),
        ]
    )


def settle_messages(namespace: Namespace) -> Operation[Settled]:
    """Counts what consumers have done, and what they have not done in time, each message once.

    Reads at most 500 ids of each list, oldest first; a caller repeats it. While consumers have
    reported more than that, no message is counted as timed out, because it may be among them.
    """
    names = namespace.done, namespace.messages
    finished, tracked = yield Batch([Command(b"LRANGE", name, -_PAGE, -1) for name in names])
    if len(finished) == _PAGE:
        tracked = []
    wanted = [*reversed(finished), *reversed(tracked)]
    if not wanted:
        return Settled(0, 0)
    keys = [*reversed(names), namespace.metrics("done"), namespace.metrics("timeout")]
    keys += [namespace.settled, *(namespace.message(_text(one)) for one in wanted)]
    call = library().settle_messages(keys, ended=len(finished), wanted=wanted)
    reply = yield from call.run()
    return Settled(reply.done, reply.timed_out)


def _text(one: bytes) -> str:
    return one.decode("utf-8", "surrogateescape")
