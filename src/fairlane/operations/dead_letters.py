"""Dead sub-requests: one by one with bodies, grouped by failure, or of a whole queue."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import settings
from fairlane.common.fingerprint import fingerprint_of, read_failure
from fairlane.common.text import join_names
from fairlane.errors import DeadNotFound, not_found
from fairlane.model import DeadChoice
from fairlane.operations.batching import run_all
from fairlane.operations.request_state import moment, progress, waiting_retries
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import as_text, read
from fairlane.protocol.steps import Batch, Command
from fairlane.records import DeadGroup, DeadSubRequest, FailureGroup, QueueErrors, RequestErrors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# ------------------------------------------------------------------ error texts
# Reads the texts of errors, which `error:{id}` has once: `dead` and `out` only name them.


ERROR_DROPPED = "the error was dropped with its dead sub-request"


async def error_texts(request_id: str, names: Iterable[bytes]) -> dict[bytes, str]:
    """Returns the text of each name, without those that were dropped. No name costs no command."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    return _present(wanted, await Command(b"HMGET", keys.errors(request_id), *wanted))


async def error_texts_of_many(named: Sequence[tuple[str, set[bytes]]]) -> dict[bytes, str]:
    """Returns the texts of the names that several requests have, each (request, names).

    A name is the digest of its text. So a text is read from the first request that has the name,
    and from the others only if the first one has dropped the text.
    """
    asked: set[bytes] = set()
    first, others = [], []
    for request_id, names in named:
        first.append((request_id, names - asked))
        others.append((request_id, names & asked))
        asked |= names
    found = await _texts(first)
    missing = [(request_id, names - found.keys()) for request_id, names in others]
    return found | await _texts(missing)


async def _texts(named: Sequence[tuple[str, set[bytes]]]) -> dict[bytes, str]:
    questions = [(request_id, sorted(names)) for request_id, names in named if names]
    replies = await run_all(
        [Command(b"HMGET", keys.errors(request_id), *wanted) for request_id, wanted in questions]
    )
    found: dict[bytes, str] = {}
    for (_, wanted), texts in zip(questions, replies, strict=True):
        found |= _present(wanted, texts)
    return found


def _present(names: Sequence[bytes], texts: Sequence[bytes | None]) -> dict[bytes, str]:
    return {
        name: text.decode("utf-8", "replace")
        for name, text in zip(names, texts, strict=True)
        if text is not None
    }


# ------------------------------------------------------------------ dead letters
# Reads dead sub-requests: one by one with bodies, grouped by failure, or of a whole queue.


ALL = DeadChoice()
CALL = 1000  # dead sub-requests named in one call
PAGE = 1000  # dead sub-requests listed in one call, without their bodies
_PAGE_BYTES = 4 << 20  # bodies and errors read in one call
_EXAMPLES = 5  # indexes shown of a group
_LOOK_AT = 10_000  # dead sub-requests of one request that are sorted by reason


@dataclass(frozen=True, slots=True)
class Listed:
    """One dead sub-request without its body."""

    dead_id: bytes
    index: int
    reason: str
    error: str

    @property
    def fingerprint(self) -> str:
        """Returns the hash that equal failures share."""
        return fingerprint_of(self.reason, self.error)


async def list_dead(request_id: str, after: bytes) -> list[Listed]:
    """Returns the page after the dead entry `after` (b"" = the first page); empty at the end."""
    names = keys.request_keys(request_id)
    rows = await scripts.list_dead(names, after=after, count=PAGE)
    return [
        Listed(dead_id, _index(head), _text(reason), _text(error))
        for dead_id, head, reason, error, _, _ in rows
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
    if choice != ALL and not missing:
        return ChosenDead(), []
    wanted = frozenset(missing)
    chosen, after = ChosenDead(), b""
    while page := await list_dead(request_id, after):
        after = page[-1].dead_id
        for one in page:
            name = one.fingerprint if choice.fingerprints else one.index
            if choice == ALL or name in wanted:
                chosen.add(one.dead_id)
                missing.discard(name)
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


async def group_dead(request_id: str, most: int | None = None) -> list[DeadGroup]:
    """Groups a request's dead sub-requests by fingerprint, most first. Raises RequestNotFound.

    With `most`, it reads no further page after so many, the first to die.
    """
    await page_size(request_id)
    groups: dict[str, DeadGroup] = {}
    after, count = b"", 0
    while most is None or count < most:
        page = await list_dead(request_id, after)
        if not page:
            break
        after, count = page[-1].dead_id, count + len(page)
        for one in page:
            _add(groups, one)
    return sorted(groups.values(), key=lambda group: (-group.count, group.first_ms))


def _add(groups: dict[str, DeadGroup], one: Listed) -> None:
    died_ms = int(one.dead_id.partition(b"-")[0])
    name = one.fingerprint
    group = groups.get(name)
    if group is None:
        failure = read_failure(one.error)
        group = groups[name] = DeadGroup(
            name, one.reason, failure.headline, failure.where, died_ms, died_ms
        )
    group.count += 1
    group.last_ms = died_ms
    if len(group.indexes) < _EXAMPLES:
        group.indexes.append(one.index)


class WithDead(NamedTuple):
    """A request that has dead sub-requests: `dead` of them are kept."""

    id: str
    state: str
    dead: int


async def queue_dead(queue: str) -> dict[str, Any]:
    """Returns which requests of a queue have dead sub-requests: unfinished first, then the newest.

    {"requests": [{"id", "state", "dead", "reasons": {reason: count}}], "more"}. Sorts 10,000 dead
    of each by reason; `more` is how many requests were not read: see requests_with_dead.
    """
    having, more = await requests_with_dead(queue)
    found = []
    for one in having:
        reasons = await _reasons(one.id)
        found.append({**one._asdict(), "reasons": reasons})
    return {"requests": found, "more": more}


async def requests_with_dead(queue: str) -> tuple[list[WithDead], int]:
    """Returns the requests that have dead sub-requests, and how many requests were not read.

    Unfinished ones are first, then the newest. Reads 1,000 unfinished and 10,000 ended requests.
    """
    ids, more = await _candidates(queue)
    found = []
    for start in range(0, len(ids), PAGE):
        part = ids[start : start + PAGE]
        counts = await Batch([Command(b"XLEN", keys.dead(one)) for one in part])
        having = [(one, count) for one, count in zip(part, counts, strict=True) if count]
        asked = [Command(b"HMGET", keys.request_hash(one), b"state", b"queue") for one, _ in having]
        stored = await Batch(asked) if asked else []
        for (one, count), (state, home) in zip(having, stored, strict=True):
            if state is not None and home == queue.encode():
                found.append(WithDead(one, _text(state), count))
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


async def _reasons(request_id: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    after, looked = b"", 0
    while looked < _LOOK_AT and (page := await list_dead(request_id, after)):
        after = page[-1].dead_id
        looked += len(page)
        for one in page:
            counts[one.reason] = counts.get(one.reason, 0) + 1
    return counts


def _index(head: bytes) -> int:
    return int(head.partition(b":")[0])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# ------------------------------------------------------------------ failures
# How sub-requests of a request or of a queue failed: the dead ones by fingerprint.
#
# It costs one call for 1,000 dead sub-requests, without their bodies, up to MOST_GROUPED. Those of
# a request also count what waits for a retry.


MOST_GROUPED = 100_000  # dead sub-requests of one request, or of a queue, that are grouped
_MAX_EXAMPLES = 5  # requests that are named of a group


async def request_errors(request_id: str, most: int = MOST_GROUPED) -> RequestErrors:
    """Returns the failures of a request; it groups `most` dead ones. Raises RequestNotFound."""
    counts = await progress(request_id)
    retries, due_ms = await waiting_retries(request_id)
    groups = await group_dead(request_id, most)
    kept = await count_dead(request_id)
    more = max(0, kept - sum(group.count for group in groups))
    now_ms = await moment(request_id)
    return RequestErrors(counts, groups, more, retries, due_ms, now_ms)


async def queue_errors(queue: str, most: int = MOST_GROUPED) -> QueueErrors:
    """Returns the failures of the requests of a queue: unfinished ones first, then the newest.

    Reads the requests that requests_with_dead returns, until `most` dead ones were read.
    """
    having, unread = await requests_with_dead(queue)
    groups: dict[str, FailureGroup] = {}
    read = 0
    for one in having:
        if read >= most:
            break
        for group in await group_dead(one.id, most - read):
            read += group.count
            known = groups.get(group.fingerprint)
            if known is None:
                known = groups[group.fingerprint] = FailureGroup(
                    group.fingerprint, group.reason, group.headline, group.where,
                    group.first_ms, group.last_ms,
                )  # fmt: skip
            known.count += group.count
            known.requests += 1
            known.first_ms = min(known.first_ms, group.first_ms)
            known.last_ms = max(known.last_ms, group.last_ms)
            if len(known.examples) < _MAX_EXAMPLES:
                known.examples.append((one.id, group.indexes[0]))
    found = sorted(groups.values(), key=lambda one: (-one.count, one.first_ms))
    more = sum(one.dead for one in having) - read
    return QueueErrors(found, max(0, more), unread)
