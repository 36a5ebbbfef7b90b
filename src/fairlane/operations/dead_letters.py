"""Dead sub-requests: one by one with bodies, grouped by failure, dropped, requeued."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.chunking import Chunker
from fairlane.common.fingerprint import fingerprint_of, read_failure
from fairlane.common.rate import parse_rates
from fairlane.common.task_names import (
    certain_tasks,
    count_task,
    read_tasks,
    task_of,
    without_counts,
)
from fairlane.common.text import join_names
from fairlane.errors import (
    DeadNotFound,
    InvalidArgument,
    RequestEnded,
    RequestExists,
    not_found,
)
from fairlane.model import ENDED_STATES, DeadChoice, outcome_of
from fairlane.operations.call_words import call_words
from fairlane.operations.completion import ERROR_DROPPED, error_texts_of_many, read_results
from fairlane.operations.durability import confirm_submission
from fairlane.operations.lease import new_op
from fairlane.operations.limit_keys import in_force
from fairlane.operations.request_state import (
    limits_in,
    moment,
    number,
    progress,
    waiting_retries,
)
from fairlane.operations.shards import read_shards
from fairlane.operations.submit import submit
from fairlane.operations.tokens import follow_up
from fairlane.options import Policy
from fairlane.options_table import DURATION, NAMES, OPTIONS, TASKS, WHOLE, field_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import as_text, hmget, parse_fields, read, unpacked
from fairlane.protocol.steps import Batch, Command, NextChunk, forward, run_all
from fairlane.records import (
    DeadExample,
    DeadGroup,
    DeadRequest,
    DeadSubRequest,
    FailureGroup,
    QueueErrors,
    RequestErrors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairlane.protocol.steps import Operation


# ------------------------------------------------------------------ dead letters
# Reads dead sub-requests: one by one with bodies, grouped by failure, or of a whole queue.


ALL = DeadChoice()
CALL = 1000  # dead sub-requests named in one call
PAGE = 1000  # dead sub-requests listed in one call, without their bodies
_PAGE_BYTES = 4 << 20  # bodies and errors read in one call
_MAX_INDEXES = 5  # indexes shown of a group
_LOOK_AT = 10_000  # dead sub-requests of one request that are sorted by reason


@dataclass(frozen=True, slots=True)
class Listed:
    """One dead sub-request without its body; `start` is how that begins."""

    dead_id: bytes
    index: int
    reason: str
    error: str
    start: bytes
    is_whole: bool  # `start` is the whole body

    @property
    def fingerprint(self) -> str:
        """Returns the hash that equal failures share."""
        return fingerprint_of(self.reason, self.error)

    @property
    def task(self) -> str:
        """Returns the task that it calls; "" if it is no call."""
        return task_of(self.start)

    @property
    def died_ms(self) -> int:
        """Returns when it was given up, by the clock of the request's Redis."""
        return int(self.dead_id.partition(b"-")[0])


async def list_dead(request_id: str, after: bytes) -> list[Listed]:
    """Returns the page after the dead entry `after` (b"" = the first page); empty at the end."""
    names = keys.request_keys(request_id)
    rows = await scripts.list_dead(names, after=after, count=PAGE)
    return [
        Listed(dead_id, _index(head), _text(reason), _text(error), start, len(start) == size)
        for dead_id, head, reason, error, _, size, start in rows
    ]


class ChosenDead:
    """Ids of dead sub-requests in their order, 16 bytes each."""

    def __init__(self) -> None:
        self._parts = array("Q")

    def add(self, dead_id: bytes) -> None:
        """Adds an id, which must be later than those before."""
        self._parts.extend(map(int, dead_id.split(b"-")))

    def __len__(self) -> int:
        return len(self._parts) // 2

    @property
    def digest(self) -> str:
        """Returns a hash of all ids."""
        return hashlib.sha256(self._parts.tobytes()).hexdigest()

    def ids(self, first: int, last: int) -> list[str]:
        """Returns the ids from place `first` up to before `last`."""
        part = self._parts[2 * first : 2 * last]
        return [f"{ms}-{seq}" for ms, seq in zip(part[::2], part[1::2], strict=True)]


async def page_size(request_id: str) -> int:
    """Returns how many dead sub-requests have about 4 MiB. Raises RequestNotFound."""
    state, biggest = await read(request_id, "state", "max_body")
    if state in {"", "abandoned"}:
        raise not_found(request_id)
    return min(PAGE // 2, max(1, _PAGE_BYTES // (int(biggest or 0) + settings.MAX_ERROR)))


async def choose(request_id: str, choice: DeadChoice) -> tuple[ChosenDead, list[Any]]:
    """Returns the chosen dead sub-requests, and the names in the choice that match none.

    Raises RequestNotFound.
    """
    await page_size(request_id)
    missing: set[Any] = {*(choice.fingerprints or ()), *(choice.indexes or ())}
    if frozenset() in {choice.fingerprints, choice.indexes, choice.tasks}:
        return ChosenDead(), []
    chosen, after = ChosenDead(), b""
    while page := await list_dead(request_id, after):
        after = page[-1].dead_id
        for one in filter(choice.accepts, page):
            chosen.add(one.dead_id)
            if missing:
                missing -= {one.fingerprint if choice.fingerprints else one.index}
    return chosen, sorted(missing)


def none_with(request_id: str, choice: DeadChoice, missing: list[Any]) -> DeadNotFound:
    """Returns the error for names in the choice that match no dead sub-request."""
    what = "fingerprint" if choice.fingerprints else "index"
    return DeadNotFound(
        f"request {request_id} has no dead sub-request with {what} "
        f"{join_names(missing)}: it was never dead, or was requeued or dropped before"
    )


async def count_dead(request_id: str) -> int:
    """Returns how many dead sub-requests are kept: neither requeued nor dropped."""
    return int(await Command(b"XLEN", keys.dead(request_id)))


async def read_dead(request_id: str, after: str) -> list[DeadSubRequest]:
    """Returns the next page, with bodies, after the `dead_id` seen last ("" = the first page).

    Empty at the end. Raises RequestNotFound.
    """
    count = await page_size(request_id)
    start = f"({after}" if after else "-"
    entries = await Command(b"XRANGE", keys.dead(request_id), start, "+", b"COUNT", count)
    return await sub_requests(request_id, entries)


async def sub_requests(
    request_id: str, entries: Sequence[tuple[bytes, list[bytes]]]
) -> list[DeadSubRequest]:
    """Reads some entries of `dead:{id}`, and the texts of their errors."""
    (found,) = await sub_requests_of_many([(request_id, entries)])
    return found


async def sub_requests_of_many(
    read: Sequence[tuple[str, Sequence[tuple[bytes, list[bytes]]]]],
) -> list[list[DeadSubRequest]]:
    """Reads some entries of `dead:{id}` of each request, and the texts of their errors."""
    fields_of = [
        [(dead_id, dict(zip(flat[::2], flat[1::2], strict=True))) for dead_id, flat in entries]
        for _, entries in read
    ]
    texts = await error_texts_of_many(
        [
            (request_id, {fields[b"error"] for _, fields in entries})
            for (request_id, _), entries in zip(read, fields_of, strict=True)
        ]
    )
    return [
        [_sub_request(dead_id, fields, texts) for dead_id, fields in entries]
        for entries in fields_of
    ]


def _sub_request(
    entry_id: bytes, fields: dict[bytes, bytes], texts: dict[bytes, str]
) -> DeadSubRequest:
    _, _, attempt, *_ = fields[b"head"].split(b":")
    return DeadSubRequest(
        index=_index(fields[b"head"]),
        attempt=int(attempt),
        reason=_text(fields[b"reason"]),
        error=texts.get(fields[b"error"], ERROR_DROPPED),
        worker=_text(fields[b"worker"]),
        body=fields[b"body"],
        dead_id=entry_id.decode(),
    )


async def group_dead(
    request_id: str, most: int | None = None, choice: DeadChoice = ALL
) -> tuple[list[DeadGroup], int]:
    """Groups a request's chosen dead sub-requests by fingerprint, most first.

    Also returns how many were read. If `most` is given, no page is read after so many, which died
    first. Raises RequestNotFound.
    """
    await page_size(request_id)
    hidden = await read_redact(request_id)
    groups: dict[str, DeadGroup] = {}
    after, count = b"", 0
    while most is None or count < most:
        page = await list_dead(request_id, after)
        if not page:
            break
        after, count = page[-1].dead_id, count + len(page)
        for one in filter(choice.accepts, page):
            _add(groups, one, hidden)
    return sorted(groups.values(), key=lambda group: (-group.count, group.first_ms)), count


async def read_redact(request_id: str) -> tuple[str, ...]:
    """Returns the fields of a request that views hide."""
    (text,) = await read(request_id, "redact")
    return tuple(filter(None, text.split(",")))


async def count_chosen(request_id: str, choice: DeadChoice) -> int:
    """Returns how many dead sub-requests are kept and chosen; 0 if the request is gone."""
    if choice == ALL:
        return await count_dead(request_id)
    count, after = 0, b""
    while page := await list_dead(request_id, after):
        after = page[-1].dead_id
        count += sum(map(choice.accepts, page))
    return count


def _add(groups: dict[str, DeadGroup], one: Listed, hidden: Sequence[str]) -> None:
    died_ms, name = one.died_ms, one.fingerprint
    group = groups.get(name)
    if group is None:
        failure = read_failure(one.error)
        group = groups[name] = DeadGroup(
            name, one.reason, failure.headline, failure.where or None, died_ms, died_ms
        )
        group.call = call_words(one.start, hidden) or None
    group.count += 1
    if task := one.task:
        count_task(group.tasks, task)
    group.last_ms = died_ms
    if len(group.indexes) < _MAX_INDEXES:
        group.indexes.append(one.index)


async def queue_dead(queue: str, choice: DeadChoice = ALL) -> dict[str, Any]:
    """Returns which requests have chosen dead sub-requests: unfinished first, then the newest.

    {"requests": [], "more"}: rows are those of DeadRequest, and "reasons", which is reason ->
    count. Sorts 10,000 dead of each by reason; `more` is how many requests were not read: see
    requests_with_dead.
    """
    having, more = await requests_with_dead(queue, choice)
    found = []
    for one in having:
        reasons = await _reasons(one.id, choice)
        chosen = one if choice == ALL else replace(one, kept=sum(reasons.values()))
        if chosen.kept:
            found.append({**asdict(chosen), "reasons": reasons})
    return {"requests": found, "more": more}


_HAVING = ("state", "queue", "total", "done", "dead", "born", "task")


async def requests_with_dead(queue: str, choice: DeadChoice = ALL) -> tuple[list[DeadRequest], int]:
    """Returns the requests that have dead sub-requests, and how many requests were not read.

    Unfinished ones are first, then the newest. Reads 1,000 unfinished and 10,000 ended requests.
    Requests that name no task of the choice are left out; their dead ones are not read.
    """
    ids, more = await _candidates(queue)
    found = []
    for start in range(0, len(ids), PAGE):
        part = ids[start : start + PAGE]
        counts = await Batch([Command(b"XLEN", keys.dead(one)) for one in part])
        having = [(one, count) for one, count in zip(part, counts, strict=True) if count]
        stored = await run_all([hmget(one, *_HAVING) for one, _ in having])
        for (one, count), reply in zip(having, stored, strict=True):
            state, home, *numbers, tasks = parse_fields(_HAVING, reply)
            if home == queue and choice.may_accept(certain_tasks(tasks)):
                total, done, dead, born = (int(number or 0) for number in numbers)
                outcome = outcome_of(state, done, dead)
                found.append(
                    DeadRequest(
                        id=one, state=state, outcome=outcome, total=total, dead=dead, kept=count,
                        submitted_ms=born, tasks=read_tasks(tasks, total),
                    )
                )  # fmt: skip
    return found, more


async def _candidates(queue: str) -> tuple[list[str], int]:
    """Returns the requests that may have dead sub-requests, and how many were left out."""
    active, names, logged = await Batch(
        [
            Command(b"ZCARD", keys.active(queue)),
            Command(b"ZRANGE", keys.active(queue), 0, PAGE - 1),
            Command(b"XLEN", keys.completed(queue)),
        ]
    )
    ids = dict.fromkeys(name.decode() for name in names)
    before, looked = b"+", 0
    while looked < _LOOK_AT:
        log = keys.completed(queue)
        entries = await Command(b"XREVRANGE", log, before, b"-", b"COUNT", PAGE)
        for entry_id, fields in entries:
            before = b"(" + entry_id
            ending = as_text(fields)
            if ending["dead"] != "0":
                ids[ending["id"]] = None
        looked += len(entries)
        if len(entries) < PAGE:
            break
    return list(ids), max(0, active - len(names)) + max(0, logged - looked)


async def _reasons(request_id: str, choice: DeadChoice) -> dict[str, int]:
    counts: dict[str, int] = {}
    after, looked = b"", 0
    while looked < _LOOK_AT and (page := await list_dead(request_id, after)):
        after = page[-1].dead_id
        looked += len(page)
        for one in filter(choice.accepts, page):
            counts[one.reason] = counts.get(one.reason, 0) + 1
    return counts


def _index(head: bytes) -> int:
    return int(head.partition(b":")[0])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# ------------------------------------------------------------------ failures
# Groups the failures of a request or of a queue by fingerprint.
#
# One call reads 1,000 dead sub-requests, without their bodies, up to MOST_GROUPED. The failures of
# a request also count what waits for a retry.


MOST_GROUPED = 100_000  # dead sub-requests of one request, or of a queue, that are grouped
_MAX_EXAMPLES = 5  # requests of a group that are named


async def request_errors(
    request_id: str, most: int = MOST_GROUPED, choice: DeadChoice = ALL
) -> RequestErrors:
    """Returns the failures of a request; groups the chosen ones of up to `most` dead ones.

    Raises RequestNotFound.
    """
    counts = await progress(request_id)
    retries, due_ms = await waiting_retries(request_id)
    groups, read = await group_dead(request_id, most, choice)
    more = max(0, await count_dead(request_id) - read)
    now_ms = await moment(request_id)
    return RequestErrors(counts, groups, more, retries, due_ms if retries else None, now_ms)


async def queue_errors(
    queue: str, most: int = MOST_GROUPED, choice: DeadChoice = ALL
) -> QueueErrors:
    """Returns the failures of the requests of a queue: unfinished ones first, then the newest.

    Reads the requests that requests_with_dead returns, until `most` dead ones were read. If there
    is a choice, `kept` of a request is how many of its dead sub-requests are chosen.
    """
    having, unread = await requests_with_dead(queue, choice)
    groups: dict[str, FailureGroup] = {}
    chosen, read = dict[str, int](), 0
    for one in having:
        if read >= most:
            break
        found_of_one, looked = await group_dead(one.id, most - read, choice)
        read += looked
        chosen[one.id] = sum(group.count for group in found_of_one)
        for group in found_of_one:
            known = groups.get(group.fingerprint)
            if known is None:
                known = groups[group.fingerprint] = FailureGroup(
                    group.fingerprint, group.reason, group.headline, group.where,
                    group.first_ms, group.last_ms, call=group.call,
                )  # fmt: skip
            known.count += group.count
            for task, count in group.tasks.items():
                count_task(known.tasks, task, count)
            known.requests += 1
            known.first_ms = min(known.first_ms, group.first_ms)
            known.last_ms = max(known.last_ms, group.last_ms)
            if len(known.examples) < _MAX_EXAMPLES:
                known.examples.append(DeadExample(one.id, group.indexes[0]))
    found = sorted(groups.values(), key=lambda one: (-one.count, one.first_ms))
    more = sum(one.kept for one in having) - read
    if choice != ALL:
        having = [replace(one, kept=chosen[one.id]) for one in having if chosen.get(one.id)]
    listed = sorted(having, key=lambda one: -one.kept)[:PAGE]
    return QueueErrors(found, listed, len(having) - len(listed), max(0, more), unread)


# ------------------------------------------------------------------ requeue ended
# Runs dead sub-requests of an ended request again, each in only one new request.
#
# First the sub-requests are claimed for the new request, in the slot of the ended one. The new
# request's id depends on exactly these sub-requests. Then the new request is submitted, and last
# its sub-requests are dropped here. A final claim lasts until the new request has them. So after a
# crash, the next caller first finishes what was begun, whatever its own choice is.


_CLAIMS = b"requeue"  # as in lua/v1/lib/dead_letters.lua
_FINAL = "claimed:"


async def requeue_ended(
    parent: str, choice: DeadChoice, *, may_miss: bool = False
) -> tuple[str, int]:
    """Requeues the choice; returns the id of the new request and how many sub-requests it has.

    If nothing of the choice is left, a repeat returns what the call before it returned. If
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
        await _check_keys(_policy_of(parent, unpacked(stored)))
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
    """Returns an id that no cancelled request has, from the choice and the chosen ones."""
    n = 0
    while True:
        text = f"{parent}\n{_hash_of(choice)}\n{chosen.digest}\n{n}"
        new_id = hashlib.sha256(text.encode()).hexdigest()[:20]
        (state,) = await read(new_id, "state")
        if state not in {"cancelling", "cancelled"}:
            return new_id
        n += 1


def _hash_of(choice: DeadChoice) -> str:
    what = (
        *(choice == ALL, sorted(choice.fingerprints or ()), sorted(choice.indexes or ())),
        *(sorted(choice.tasks or ()), choice.error, choice.since_ms, choice.until_ms),
    )
    return hashlib.sha256(repr(what).encode()).hexdigest()[:20]


async def _check_keys(policy: Policy) -> None:
    """Raises InvalidArgument, before a claim, if the queue cannot have the request's keys now."""
    if policy.limits and (await read_shards(policy.queue)).present.numbers:
        raise InvalidArgument(
            f"queue {policy.queue} is spread over shards, which have no limits by key: bring its "
            f"lanes together with `fairlane queue set --shards 0 --queue {policy.queue}`, and "
            "requeue then"
        )


async def _claim_dead(parent: str, new_id: str, choice: DeadChoice, chosen: ChosenDead) -> bool:
    """Claims all chosen ones, finally; returns False if another caller has claimed some."""
    count = len(chosen)
    for first in range(0, count, CALL):
        is_last = first + CALL >= count
        call = scripts.claim_dead(
            keys.request_keys(parent),
            id=new_id,
            choice=_hash_of(choice),
            expected=count if is_last else 0,
            ids=chosen.ids(first, first + CALL),
        )
        reply = await call
        if reply.is_gone or reply.is_alive:  # a failover took back the request or its end
            raise not_found(parent)
        if reply.is_taken:
            return False
    return True


async def _finish(parent: str, stored: dict[str, str], new_id: str) -> None:
    """Submits all that is claimed for a new request, and then drops it from the old one."""
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
        if is_open == "1":  # an earlier call began it, and its digest has the limits of that time
            begun = {"keys": (await read(new_id, "keys"))[0]}
            policy = replace(policy, limits=limits_in(begun))
        else:
            policy = replace(policy, limits=await in_force(policy.queue, policy.limits))
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
        rows = await Command(b"XPENDING", key, _CLAIMS, after, "+", PAGE, new_id)
        for dead_id, *_ in rows:
            chosen.add(dead_id)
            after = b"(" + dead_id
        if len(rows) < PAGE:
            break
    return chosen


async def _give_back(parent: str, new_id: str, chosen: ChosenDead) -> None:
    """Ends a cancelled request's claims: frees what it did not settle, and drops the rest.

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
    for last in range(max(1, len(chosen)), 0, -CALL):  # once also when none is left
        first = max(0, last - CALL)
        ids = chosen.ids(first, last)
        stay = [one for place, one in enumerate(ids, first) if place in kept]
        go = [one for place, one in enumerate(ids, first) if place not in kept]
        await scripts.drop_dead(keys.request_keys(parent), id=new_id, keep=len(stay), ids=stay + go)


async def _submit(parent: str, new_id: str, policy: Policy, bodies: _Bodies) -> None:
    try:
        # Not withdrawn if Redis is full, because sub-requests that have run would run again.
        await _feed(submit(new_id, policy, takes_back=False), bodies.pull)
    except RequestExists:
        (is_open,) = await read(new_id, "open")
        if is_open != "0":  # else another caller has submitted the same
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
        limits=limits_in(fields),
        trace=fields.get("trace", ""),
        **_kept(fields),
    )


def _kept(fields: dict[str, str]) -> dict[str, Any]:
    """Returns the other options in the request's hash, in the form of a policy."""
    found: dict[str, Any] = {}
    for option in OPTIONS:
        text = fields.get(option.name)
        if text and option.stored == option.name != "after":  # it waits for no others
            found[field_of(option)] = (
                tuple(text.split(",")) if option.kind == NAMES
                else int(text) if option.kind in {WHOLE, DURATION}
                else without_counts(text) if option.kind == TASKS
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
    size = await page_size(request_id)  # the script reads what it drops
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
        ids = chosen.ids(first, first + CALL)
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
