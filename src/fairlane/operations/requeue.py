"""Runs dead sub-requests again: in their own request before its end, in a new one after it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from fairlane.common.chunking import Chunker
from fairlane.common.rate import parse_rates
from fairlane.errors import RequestEnded, RequestExists, not_found
from fairlane.model import ENDED_STATES
from fairlane.operations import dead_letters
from fairlane.operations.completion import read_results
from fairlane.operations.dead_letters import ALL, ChosenDead, choose, none_with, page_size
from fairlane.operations.durability import confirm_submission
from fairlane.operations.follow_up import follow_up
from fairlane.operations.lease import new_op
from fairlane.operations.request_state import number
from fairlane.operations.submit import submit
from fairlane.options import Policy
from fairlane.options_table import DURATION, NAMES, OPTIONS, WHOLE, field_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import as_text, read, unpacked
from fairlane.protocol.steps import Batch, Command, NextChunk, forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.model import DeadChoice
    from fairlane.protocol.steps import Operation


# ------------------------------------------------------------------ requeue ended
# Runs dead sub-requests of an ended request again in a new one, each in only one new request.
#
# First they are claimed for the new request, in the slot of the ended one. The id of the new
# request depends on exactly these sub-requests. Then the new request is submitted; last they are
# dropped. A final claim lasts until the new request has them. So after a crash, the next caller
# first finishes what was begun, whatever its own choice is.


_CLAIMS = b"requeue"  # as in lua/v1/lib/dead_letters.lua
_FINAL = "claimed:"


async def requeue_ended(
    parent: str, choice: DeadChoice, *, may_miss: bool = False
) -> tuple[str, int]:
    """Requeues the choice; returns the id of the new request and how many sub-requests it has.

    If nothing of the choice is left, a repeat returns what the call before it returned. With
    `may_miss`, names in the choice may match no dead sub-request. Raises RequestNotFound,
    DeadNotFound, RequestEnded, RequestExists (another caller is submitting the new request).
    """
    while True:
        stored = as_text(await Command(b"HGETALL", keys.request_hash(parent)))
        if not stored:
            raise not_found(parent)
        for name in stored:
            if name.startswith(_FINAL):
                await _finish(parent, stored, name.removeprefix(_FINAL))
        chosen, missing = await choose(parent, choice)
        if (missing and not may_miss) or not len(chosen):
            begun = await _begun(stored, choice)
            if begun is None and missing and not may_miss:
                raise none_with(parent, choice, missing)
            return begun or (parent, 0)
        new_id = await _new_id(parent, choice, chosen)
        if await _claim_dead(parent, new_id, choice, chosen):
            await _finish(parent, stored, new_id)
            return new_id, len(chosen)


async def _begun(stored: dict[str, str], choice: DeadChoice) -> tuple[str, int] | None:
    """Returns the new request of an earlier call with the same choice, and its size.

    None if there is none, or if it was cancelled.
    """
    new_id = stored.get("requeued:" + _hash_of(choice))
    if new_id is None:
        return None
    state, total = await read(new_id, "state", "total")
    return None if state in {"", "abandoned", "cancelling", "cancelled"} else (new_id, int(total))


async def _new_id(parent: str, choice: DeadChoice, chosen: ChosenDead) -> str:
    """Returns an id of no cancelled request; it depends on the choice and the chosen ones."""
    n = 0
    while True:
        text = f"{parent}\n{_hash_of(choice)}\n{chosen.digest}\n{n}"
        new_id = hashlib.sha256(text.encode()).hexdigest()[:20]
        (state,) = await read(new_id, "state")
        if state not in {"cancelling", "cancelled"}:
            return new_id
        n += 1


def _hash_of(choice: DeadChoice) -> str:
    what = (choice == ALL, sorted(choice.fingerprints or ()), sorted(choice.indexes or ()))
    return hashlib.sha256(repr(what).encode()).hexdigest()[:20]


async def _claim_dead(parent: str, new_id: str, choice: DeadChoice, chosen: ChosenDead) -> bool:
    """Claims all chosen ones, finally; False if another caller has claimed some of them."""
    count = len(chosen)
    for first in range(0, count, dead_letters.CALL):
        is_last = first + dead_letters.CALL >= count
        call = scripts.claim_dead(
            keys.request_keys(parent),
            id=new_id,
            choice=_hash_of(choice),
            expected=count if is_last else 0,
            ids=chosen.ids(first, first + dead_letters.CALL),
        )
        reply = await call
        if reply.is_gone or reply.is_alive:  # a failover took back the request or its end
            raise not_found(parent)
        if reply.is_taken:
            return False
    return True


async def _finish(parent: str, stored: dict[str, str], new_id: str) -> None:
    """Gives a new request all that is claimed for it, and then drops that from the old one."""
    chosen = await _claimed(parent, new_id)
    state, is_open, chain = await read(new_id, "state", "open", "chain")
    if state == "cancelling":
        raise RequestEnded(
            f"request {new_id}, which was to run dead sub-requests of request {parent}, is being "
            "cancelled: try again when it has ended"
        )
    if state == "cancelled":
        await _give_back(parent, new_id, chosen)
        return
    policy = _policy_of(parent, unpacked(stored))
    if len(chosen) and (state in {"", "abandoned"} or is_open == "1"):
        size = await page_size(parent)
        await _submit(parent, new_id, policy, _Bodies(parent, chosen, size))
    elif len(chosen) and policy.durable:  # an earlier call may have ended before it confirmed
        await confirm_submission(new_id, policy.durable, chain)
    await _release(parent, new_id, chosen, frozenset())


async def _claimed(parent: str, new_id: str) -> ChosenDead:
    """Returns what is claimed for a new request, in the order of `dead`."""
    chosen, after = ChosenDead(), b"-"
    key = keys.dead(parent)
    while await Command(b"EXISTS", key):
        rows = await Command(b"XPENDING", key, _CLAIMS, after, "+", dead_letters.PAGE, new_id)
        for dead_id, *_ in rows:
            chosen.add(dead_id)
            after = b"(" + dead_id
        if len(rows) < dead_letters.PAGE:
            break
    return chosen


async def _give_back(parent: str, new_id: str, chosen: ChosenDead) -> None:
    """Frees the claims of a cancelled request on what it did not settle; drops the rest.

    The index of a sub-request in the cancelled request is its place among the claims, because
    claims are dropped from the last one on.
    """
    settled: set[int] = set()
    after, is_last = b"0-0", False
    while not is_last:
        page = await read_results(new_id, after, 0)
        is_last = page.is_last
        for entry_id, found in page.entries:
            after = entry_id
            settled.update(result.index for result in found)
    await _release(parent, new_id, chosen, frozenset(range(len(chosen))) - settled)


async def _release(parent: str, new_id: str, chosen: ChosenDead, kept: frozenset[int]) -> None:
    """Ends the claims, the last one first; drops all dead sub-requests but those at `kept`."""
    for last in range(max(1, len(chosen)), 0, -dead_letters.CALL):  # once also when none is left
        first = max(0, last - dead_letters.CALL)
        ids = chosen.ids(first, last)
        stay = [one for place, one in enumerate(ids, first) if place in kept]
        go = [one for place, one in enumerate(ids, first) if place not in kept]
        await scripts.drop_dead(keys.request_keys(parent), id=new_id, keep=len(stay), ids=stay + go)


async def _submit(parent: str, new_id: str, policy: Policy, bodies: _Bodies) -> None:
    try:
        # Not withdrawn if Redis is full: sub-requests that have run would run again.
        await _feed(submit(new_id, policy, takes_back=False), bodies.pull)
    except RequestExists:
        (is_open,) = await read(new_id, "open")
        if is_open != "0":  # else another caller was quicker with the same
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
        rates=parse_rates(fields.get("rates", "")),
        trace=fields.get("trace", ""),
        **_kept(fields),
    )


def _kept(fields: dict[str, str]) -> dict[str, Any]:
    """Returns what the request's hash keeps of other options, as a policy has it."""
    found: dict[str, Any] = {}
    for option in OPTIONS:
        text = fields.get(option.name)
        if text and option.stored == option.name != "after":  # it does not wait once more
            found[field_of(option)] = (
                tuple(text.split(",")) if option.kind == NAMES
                else int(text) if option.kind in {WHOLE, DURATION}
                else text
            )  # fmt: skip
    return found


class _Bodies:
    """The bodies of the chosen sub-requests as chunks, read a page at a time."""

    def __init__(self, request_id: str, chosen: ChosenDead, size: int) -> None:
        self._id, self._chosen, self._next, self._size = request_id, chosen, 0, size
        self._chunker = Chunker()
        self._ready: list[list[bytes]] = []
        self._is_over = False

    async def pull(self) -> list[bytes] | None:
        """Returns the next chunk, None at the end."""
        while not self._ready and not self._is_over:
            await self._read()
        return self._ready.pop(0) if self._ready else None

    async def _read(self) -> None:
        ids = self._chosen.ids(self._next, self._next + self._size)
        self._next += len(ids)
        if ids:
            key = keys.dead(self._id)
            replies = await Batch([Command(b"XRANGE", key, one, one) for one in ids])
            self._ready += self._chunks(replies)
            return
        self._is_over = True
        last = self._chunker.rest()
        self._ready += [last] if last else []

    def _chunks(self, replies: list[Any]) -> Iterator[list[bytes]]:
        for entries in replies:
            for _, flat in entries:  # none if it was dropped meanwhile
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                full = self._chunker.add(fields[b"body"])
                if full:
                    yield full


async def _feed(
    operation: Operation[int], pull: Callable[[], Operation[list[bytes] | None]]
) -> int:
    """Runs an operation that pulls chunks; here the chunks come from another operation."""
    try:
        step = operation.send(None)
        while True:
            try:
                reply = await pull() if isinstance(step, NextChunk) else await forward(step)
            except GeneratorExit:
                operation.close()
                raise
            except BaseException as error:  # noqa: BLE001  it is the operation's to answer
                step = operation.throw(error)
            else:
                step = operation.send(reply)
    except StopIteration as end:
        return int(end.value)


async def drop_dead(request_id: str, choice: DeadChoice = ALL) -> int:
    """Deletes dead sub-requests with their bodies and errors; returns how many.

    Counts and results stay; a result no longer has the text of its error.

    Raises RequestNotFound, DeadNotFound, RequestExists (an interrupted requeue has claimed some).
    """
    chosen, missing = await choose(request_id, choice)
    if missing:
        raise none_with(request_id, choice, missing)
    dropped = held = 0
    size = await dead_letters.page_size(request_id)  # the script reads what it drops
    for last in range(len(chosen), 0, -size):
        ids = chosen.ids(max(0, last - size), last)
        call = scripts.drop_dead(keys.request_keys(request_id), id="", keep=0, ids=ids)
        reply = await call
        dropped, held = dropped + reply.dropped, held + reply.held
    if held:
        raise RequestExists(
            f"{held:,} dead sub-requests of request {request_id} are being requeued and were not "
            "dropped: requeue any of its dead ones to finish that"
        )
    return dropped


async def requeue_dead(request_id: str, choice: DeadChoice = ALL) -> tuple[str, int]:
    """Makes dead sub-requests wait again with all attempts: (id of the request, how many).

    Before the end of the request they wait in the request itself. After it, they wait in a new
    request with the same policy and the old one as its parent; the old one keeps their dead
    results: see requeue_ended. Raises RequestNotFound, DeadNotFound, RequestEnded (its end is near:
    try later).
    """
    state = await Command(b"HGET", keys.request_hash(request_id), b"state")
    if (state or b"").decode() in ENDED_STATES:
        return await requeue_ended(request_id, choice)
    chosen, missing = await choose(request_id, choice)
    if missing:
        raise none_with(request_id, choice, missing)
    return await _requeue_dead(request_id, choice, chosen)


async def _requeue_dead(request_id: str, choice: DeadChoice, chosen: ChosenDead) -> tuple[str, int]:
    """Requeues the chosen ones; chooses once more if the request has ended meanwhile."""
    moved: int = 0
    first: int = 0
    while first < len(chosen):
        ids = chosen.ids(first, first + dead_letters.CALL)
        call = scripts.requeue_dead(keys.request_keys(request_id), op=new_op(), ids=ids)
        reply = await call
        stored = await Command(b"HGET", keys.request_hash(request_id), b"queue")
        if reply.is_gone or stored is None:
            raise not_found(request_id)
        if reply.is_ending:
            raise RequestEnded(
                f"request {request_id} is being cancelled or past its deadline: "
                "requeue its dead sub-requests when it has ended"
            )
        if calls := follow_up(stored.decode(), (request_id, reply)):
            await Batch(calls)
        if reply.is_ended:
            # More may have died before the end, and some of the chosen ones wait again.
            new_id, count = await requeue_ended(request_id, choice, may_miss=True)
            return new_id, moved + count
        first += reply.looked
        moved += reply.moved
    return request_id, moved
