"""Dead sub-requests run again: in their own request before its end, in a new one after it."""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING, Any

from .. import keys
from ..bodies import Chunker
from ..errors import DeadNotFound, RequestEnded, RequestExists
from ..model import ENDED_STATES, DeadChoice, Policy
from ..scripts import library
from ..steps import Batch, Command, Pull
from .control import as_text, not_found, number
from .dead import list_dead, page_size
from .durable import confirm_submission
from .fields import read, unpacked
from .submit import submit
from .tokens import insert, retire
from .words import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..steps import Operation

ALL = DeadChoice()
_CALL = 1000  # dead ones that one call names
_CANCELLED = {"cancelling", "cancelled"}


class Chosen:
    """Ids of dead sub-requests in their order, 16 bytes each."""

    def __init__(self) -> None:
        self._parts = array("Q")

    def add(self, dead_id: bytes) -> None:
        """One more, later than those before."""
        self._parts.extend(map(int, dead_id.split(b"-")))

    def __len__(self) -> int:
        return len(self._parts) // 2

    def ids(self, first: int, last: int) -> list[str]:
        """The ids from place `first` up to before `last`."""
        part = self._parts[2 * first : 2 * last]
        return [f"{ms}-{seq}" for ms, seq in zip(part[::2], part[1::2], strict=True)]


def choose(request_id: str, choice: DeadChoice) -> Operation[tuple[Chosen, list[Any]]]:
    """The dead sub-requests that are meant, and which of those named are not among the dead.

    Raises RequestNotFound.
    """
    yield from page_size(request_id)
    missing: set[Any] = {*(choice.fingerprints or ()), *(choice.indexes or ())}
    if choice != ALL and not missing:
        return Chosen(), []
    named = frozenset(missing)
    chosen, after = Chosen(), b""
    while page := (yield from list_dead(request_id, after)):
        after = page[-1].dead_id
        for one in page:
            name = one.fingerprint if choice.fingerprints else one.index
            if choice == ALL or name in named:
                chosen.add(one.dead_id)
                missing.discard(name)
    return chosen, sorted(missing)


def _none_with(request_id: str, choice: DeadChoice, missing: list[Any]) -> DeadNotFound:
    what = "fingerprint" if choice.fingerprints else "index"
    return DeadNotFound(
        f"request {request_id} has no dead sub-request with {what} {named(missing)}"
    )


def drop_dead(request_id: str, choice: DeadChoice = ALL) -> Operation[int]:
    """Forgets dead sub-requests and their bodies; returns how many. Counts and results stay.

    Raises RequestNotFound, DeadNotFound.
    """
    chosen, missing = yield from choose(request_id, choice)
    if missing:
        raise _none_with(request_id, choice, missing)
    return (yield from _drop(request_id, chosen))


def _drop(request_id: str, chosen: Chosen) -> Operation[int]:
    """The newest first: while some are left, the first one is among them."""
    dropped: int = 0
    for last in range(len(chosen), 0, -_CALL):
        ids = chosen.ids(max(0, last - _CALL), last)
        dropped += yield Command(b"XDEL", keys.dead(request_id), *ids)
    return dropped


def requeue_dead(request_id: str, choice: DeadChoice = ALL) -> Operation[tuple[str, int]]:
    """Dead sub-requests wait again with all attempts before them: (id of the request, how many).

    Before the end it is the request itself. After it a new request with the same policy and the
    old one as its parent, which keeps their dead results; its id depends only on the parent, the
    choice and the first one chosen, and is noted with the parent, so that a repeat finds it, goes
    on where it was and says the same.
    Raises RequestNotFound, DeadNotFound, RequestEnded (it is on its way to its end: try later).
    """
    state = yield Command(b"HGET", keys.request_hash(request_id), b"state")
    is_over = (state or b"").decode() in ENDED_STATES
    chosen, missing = yield from choose(request_id, choice)
    if is_over and (missing or not len(chosen)):
        begun = yield from _begun(request_id, choice)
        if begun is not None:
            yield from _drop(request_id, chosen)
            return begun
    if missing:
        raise _none_with(request_id, choice, missing)
    return (yield from _requeue(request_id, choice, chosen, is_over=is_over))


def _requeue(
    request_id: str, choice: DeadChoice, chosen: Chosen, *, is_over: bool
) -> Operation[tuple[str, int]]:
    """Those chosen wait again; `is_over`: they were chosen after the end."""
    moved: int = 0
    first: int = 0
    while first < len(chosen):
        reply = yield library().requeue_dead(
            keys.request_keys(request_id), ids=chosen.ids(first, first + _CALL)
        )
        stored = yield Command(b"HGET", keys.request_hash(request_id), b"queue")
        if reply[0] == b"gone" or stored is None:
            raise not_found(request_id)
        if reply[0] == b"ending":
            raise RequestEnded(
                f"request {request_id} is being cancelled or past its deadline: "
                "requeue its dead sub-requests when it has ended"
            )
        if reply[0] == b"ended":
            yield retire(stored.decode(), request_id, reply[1])
            if not is_over:  # more may have died before the end; from now on none does
                chosen, _ = yield from choose(request_id, choice)
            new_id, count = yield from _submit_again(request_id, choice, chosen)
            return new_id, moved + count
        first += reply[1]
        moved += reply[2]
        calls = insert(stored.decode(), request_id, reply[3])
        if calls:
            yield Batch(calls)
    return request_id, moved


def _begun(parent: str, choice: DeadChoice) -> Operation[tuple[str, int] | None]:
    """The new request of an earlier call for the same, and of how many; None if there is none.

    One counts that was submitted to its end and is not cancelled: the dead ones are in it.
    """
    note = b"requeued:" + _hash_of(choice)
    noted = yield Command(b"HGET", keys.request_hash(parent), note)
    if noted is None:
        return None
    new_id = noted.decode()
    asked = ("state", "open", "total", "durable", "chain")
    state, is_open, total, durable, chain = yield from read(new_id, *asked)
    if is_open != "0" or state in _CANCELLED:
        return None
    if int(durable):  # the earlier call may have ended before that
        yield from confirm_submission(new_id, int(durable), chain)
    return new_id, int(total)


def _submit_again(parent: str, choice: DeadChoice, chosen: Chosen) -> Operation[tuple[str, int]]:
    """The new request of an ended one's dead sub-requests, which then are dropped; and how many.

    While the dropping is unfinished the first one chosen is still there, so that a repeat comes to
    the same id; and as no sub-request dies after the end, the same choice means no others.
    """
    if not len(chosen):  # somebody else was quicker
        return (yield from _begun(parent, choice)) or (parent, 0)
    stored = as_text((yield Command(b"HGETALL", keys.request_hash(parent))))
    if not stored:
        raise not_found(parent)
    policy = _policy_of(parent, unpacked(stored))
    size = yield from page_size(parent)
    n = 0
    while True:
        new_id = _id_of(parent, choice, chosen.ids(0, 1)[0], n)
        asked = ("state", "open", "chain", "total")
        state, is_open, chain, total = yield from read(new_id, *asked)
        if state in _CANCELLED:  # nobody runs it any more: another one does
            n += 1
            continue
        noted = yield library().note_requeue(
            keys.request_keys(parent), choice=_hash_of(choice), id=new_id
        )
        if noted[0] != b"ok":
            raise not_found(parent)
        count = int(total or 0)
        if state in {"", "abandoned"} or is_open == "1":
            count = len(chosen)
            yield from _submit(parent, new_id, policy, _Bodies(parent, chosen, size))
        elif policy.durable:  # an earlier call may have ended before that
            yield from confirm_submission(new_id, policy.durable, chain)
        yield from _drop(parent, chosen)
        return new_id, count


def _submit(parent: str, new_id: str, policy: Policy, bodies: _Bodies) -> Operation[None]:
    try:
        yield from _feed(submit(new_id, policy), bodies.pull)
    except RequestExists:
        (is_open,) = yield from read(new_id, "open")
        if is_open != "0":  # else somebody else was quicker with the same
            raise RequestExists(
                f"dead sub-requests of request {parent} are being requeued as {new_id}: "
                "try again when that is done"
            ) from None


def _policy_of(parent: str, fields: dict[str, str]) -> Policy:
    return Policy(
        queue=fields["queue"],
        priority=number(fields, "priority"),
        limit=number(fields, "limit"),
        attempts=number(fields, "attempts"),
        backoff_ms=(number(fields, "backoff_min"), number(fields, "backoff_max")),
        lease_ms=number(fields, "lease_ms"),
        retain_ms=number(fields, "retain_ms"),
        time_limit_ms=number(fields, "time_limit_ms"),
        durable=number(fields, "durable"),
        parent=parent,
    )


def _hash_of(choice: DeadChoice) -> bytes:
    what = (choice == ALL, sorted(choice.fingerprints or ()), sorted(choice.indexes or ()))
    return hashlib.sha256(repr(what).encode()).hexdigest()[:20].encode()


def _id_of(parent: str, choice: DeadChoice, first: str, n: int) -> str:
    what = (sorted(choice.fingerprints or ()), sorted(choice.indexes or ()))
    return hashlib.sha256(f"{parent}\n{what}\n{first}\n{n}".encode()).hexdigest()[:20]


class _Bodies:
    """The bodies of the chosen ones as chunks, read a page at a time."""

    def __init__(self, request_id: str, chosen: Chosen, size: int) -> None:
        self._id, self._chosen, self._next, self._size = request_id, chosen, 0, size
        self._chunker = Chunker()
        self._ready: list[list[bytes]] = []
        self._is_over = False

    def pull(self) -> Operation[list[bytes] | None]:
        """The next chunk, None at the end."""
        while not self._ready and not self._is_over:
            yield from self._read()
        return self._ready.pop(0) if self._ready else None

    def _read(self) -> Operation[None]:
        ids = self._chosen.ids(self._next, self._next + self._size)
        self._next += len(ids)
        if ids:
            key = keys.dead(self._id)
            replies = yield Batch([Command(b"XRANGE", key, one, one) for one in ids])
            self._ready += self._chunks(replies)
            return
        self._is_over = True
        last = self._chunker.rest()
        self._ready += [last] if last else []

    def _chunks(self, replies: list[Any]) -> Iterator[list[bytes]]:
        for entries in replies:
            for _, flat in entries:  # none when somebody dropped it meanwhile
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                full = self._chunker.add(fields[b"body"])
                if full:
                    yield full


def _feed(
    operation: Operation[int], pull: Callable[[], Operation[list[bytes] | None]]
) -> Operation[int]:
    """Runs an operation that pulls chunks; here they come from another operation."""
    try:
        step = next(operation)
        while True:
            try:
                reply = (yield from pull()) if isinstance(step, Pull) else (yield step)
            except GeneratorExit:
                operation.close()
                raise
            except BaseException as error:  # noqa: BLE001  it is the operation's to answer
                step = operation.throw(error)
            else:
                step = operation.send(reply)
    except StopIteration as end:
        return int(end.value)
