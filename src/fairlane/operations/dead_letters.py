"""Dead sub-requests: one by one with bodies, grouped by failure, dropped, requeued."""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.common.fingerprint import FAILED_LAST, fingerprint_of, read_failure
from fairlane.common.task_names import certain_tasks, count_task, read_tasks, task_of
from fairlane.common.text import join_names, split_names
from fairlane.errors import (
    DeadNotFound,
    FairlaneError,
    InvalidArgument,
    RequestEnded,
    not_found,
)
from fairlane.model import DeadChoice, outcome_of
from fairlane.operations.call_words import call_words
from fairlane.operations.completion import ERROR_DROPPED, error_texts_of_many
from fairlane.operations.durability import confirm_requeue
from fairlane.operations.intents import Intent, read_intents, withdraw
from fairlane.operations.lease import new_op
from fairlane.operations.request_state import (
    moment,
    noted_failure,
    progress,
    waiting_retries,
)
from fairlane.operations.stats import releases
from fairlane.operations.tokens import follow_up, retire
from fairlane.operations.workers import glance
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import as_text, hmget, parse_fields, read
from fairlane.protocol.steps import Batch, Call, Command, run_all, run_each
from fairlane.records import (
    DeadExample,
    DeadGroup,
    DeadRequest,
    DeadSubRequest,
    FailureGroup,
    QueueErrors,
    RequestErrors,
    RetryGroup,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fairlane.call_records import CodeRelease
    from fairlane.common.task_names import Tasks
    from fairlane.records import FailedAttempt


# ------------------------------------------------------------------ dead letters
# Reads dead sub-requests: one by one with bodies, grouped by failure, or of a whole queue.


ALL = DeadChoice()
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


async def dated(queue: str, choice: DeadChoice) -> DeadChoice:
    """Returns the choice with the moment of the newest release, if it asks for that.

    Raises InvalidArgument if workers of the queue have named no release.
    """
    if not choice.since_release:
        return choice
    (newest, *_) = await releases(queue) or (None,)
    if newest is None:
        raise InvalidArgument(
            f"queue {queue} has no release: name that of your code by App(release=...), or by "
            f"{settings.RELEASE_VARIABLE} of its workers"
        )
    return replace(choice, since_release=False, since_ms=max(choice.since_ms, newest.first_ms))


async def dated_of(request_id: str, choice: DeadChoice) -> DeadChoice:
    """Returns the same by the releases of the queue of this request. Raises InvalidArgument."""
    if not choice.since_release:
        return choice
    (queue,) = await read(request_id, "queue")
    return await dated(queue, choice)


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
    choice = await dated_of(request_id, choice)
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
    request_id: str,
    most: int | None = None,
    choice: DeadChoice = ALL,
    older: OlderFailures | None = None,
) -> tuple[list[DeadGroup], int]:
    """Groups a request's chosen dead sub-requests by fingerprint, most first.

    Also returns how many were read. If `most` is given, no page is read after so many, which died
    first. `older` gets the failures that were there before the newest release, chosen or not.
    Raises RequestNotFound.
    """
    await page_size(request_id)
    choice = await dated_of(request_id, choice)
    hidden = await read_redact(request_id)
    groups: dict[str, DeadGroup] = {}
    after, count = b"", 0
    while most is None or count < most:
        page = await list_dead(request_id, after)
        if not page:
            break
        after, count = page[-1].dead_id, count + len(page)
        if older is not None:
            older.add(page)
        for one in filter(choice.accepts, page):
            _add(groups, one, hidden)
    return sorted(groups.values(), key=lambda group: (-group.count, group.first_ms)), count


class OlderFailures:
    """The fingerprints of dead sub-requests that died before a release began."""

    def __init__(self, release: CodeRelease | None) -> None:
        self._before_ms = release.first_ms if release is not None else 0
        self._found: set[str] = set()

    def add(self, page: Iterable[Listed]) -> None:
        """Adds those of these dead sub-requests."""
        self._found.update(one.fingerprint for one in page if one.died_ms < self._before_ms)

    def is_new(self, group: DeadGroup | FailureGroup) -> bool:
        """Returns True if there is a release, and none of these failed so before it."""
        return self._before_ms > 0 and group.fingerprint not in self._found


async def read_redact(request_id: str) -> tuple[str, ...]:
    """Returns the fields of a request that views hide."""
    (text,) = await read(request_id, "redact")
    return split_names(text)


async def count_chosen(request_id: str, choice: DeadChoice) -> int:
    """Returns how many dead sub-requests are kept and chosen; 0 if the request is gone."""
    if choice == ALL:
        return await count_dead(request_id)
    choice = await dated_of(request_id, choice)
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
    choice = await dated(queue, choice)
    having, more = await requests_with_dead(queue, choice)
    found = []
    for one in having:
        reasons = await _reasons(one.id, choice)
        chosen = one if choice == ALL else replace(one, kept=sum(reasons.values()))
        if chosen.kept:
            found.append({**asdict(chosen), "reasons": reasons})
    return {"requests": found, "more": more}


_HAVING = ("state", "queue", "total", "done", "dead", "born", "reopened", "task")


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
                total, done, dead, born, reopened = (int(number or 0) for number in numbers)
                outcome = outcome_of(state, done, dead, reopened)
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
            if ending.get("dead", "0") != "0":
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
    (release, *_) = await releases(counts.queue) or (None,)
    older = OlderFailures(release)
    groups, read = await group_dead(request_id, most, choice, older)
    for group in groups:
        group.is_new = older.is_new(group)
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
    choice = await dated(queue, choice)
    (release, *_) = await releases(queue) or (None,)
    older = OlderFailures(release)
    having, unread = await requests_with_dead(queue, choice)
    groups: dict[str, FailureGroup] = {}
    chosen, read = dict[str, int](), 0
    for one in having:
        if read >= most:
            break
        found_of_one, looked = await group_dead(one.id, most - read, choice, older)
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
    for known in groups.values():
        known.is_new = older.is_new(known)
    found = sorted(groups.values(), key=lambda one: (-one.count, one.first_ms))
    retries = await queue_retries(queue, choice)
    more = sum(one.kept for one in having) - read
    if choice != ALL:
        having = [replace(one, kept=chosen[one.id]) for one in having if chosen.get(one.id)]
    listed = sorted(having, key=lambda one: -one.kept)[:PAGE]
    left = len(having) - len(listed)
    return QueueErrors(found, listed, left, max(0, more), unread, release, retries)


_FAILED = ("queue", "total", "done", "failure", "task")


async def queue_retries(queue: str, choice: DeadChoice = ALL) -> list[RetryGroup]:
    """Groups up to 1,000 unfinished requests with sub-requests to be tried again by last failure.

    The choice is compared with the last failed attempt, because Redis keeps only that one.
    """
    names = await Command(b"ZRANGE", keys.active(queue), 0, PAGE - 1)
    ids = [name.decode("utf-8", "replace") for name in names]
    rows = await run_each([hmget(one, *_FAILED) for one in ids])
    failed: list[tuple[str, FailedAttempt, int, Tasks]] = []
    for one, row in zip(ids, rows, strict=True):
        if isinstance(row, FairlaneError):  # doctor reports it
            continue
        home, total, done, note, task = parse_fields(_FAILED, row)
        last = noted_failure(note, "x") if home == queue else None
        if last is not None and _may_choose(choice, last, certain_tasks(task)):
            failed.append((one, last, int(done or 0), read_tasks(task, int(total or 0))))
    counts = await run_all([Command(b"ZCARD", keys.retries(one)) for one, *_ in failed])
    groups: dict[str, RetryGroup] = {}
    for (one, last, made, tasks), count in zip(failed, counts, strict=True):
        if not count:
            continue
        sign, failure = fingerprint_of(FAILED_LAST, last.error), read_failure(last.error)
        group = groups.setdefault(
            sign, RetryGroup(sign, failure.headline, failure.where or None, last.at_ms)
        )
        group.count += count
        group.done += made
        group.requests += 1
        group.last_ms = max(group.last_ms, last.at_ms)
        group.examples += [one] if len(group.examples) < _MAX_EXAMPLES else []
        for task in tasks:
            group.tasks[task] = None
    return sorted(groups.values(), key=lambda one: (-one.count, -one.last_ms))


def _may_choose(choice: DeadChoice, last: FailedAttempt, tasks: Sequence[str]) -> bool:
    """Returns True if a last failed attempt is chosen, as a dead sub-request of it would be."""
    return (
        choice.indexes is None
        and choice.may_accept(tasks)
        and last.at_ms >= choice.since_ms
        and (not choice.until_ms or last.at_ms < choice.until_ms)
        and choice.error in last.error.lower()
        and (
            choice.fingerprints is None
            or fingerprint_of(FAILED_LAST, last.error) in choice.fingerprints
        )
    )


# ------------------------------------------------------------------ requeue and drop
# Makes dead sub-requests wait again in their own request, or forgets them.
#
# A request that has ended is opened again for that. Its end must be in the log before, and an
# intent in `active`, so that a crash behind the script leaves a trace. A requeue of several calls
# holds the request: it does not end between two of them.


CALL_REQUEUED = 200  # of one call: each costs Redis four commands
_ROUNDS = 5  # ends that a requeue may meet


async def requeue_dead(request_id: str, choice: DeadChoice = ALL, by: str = "") -> int:
    """Makes dead sub-requests wait again with all attempts; returns how many.

    They wait in their own request, under their old indexes. If that has ended, it is opened again,
    with the settings that it has, and will end once more. `by` names the caller for `status`.
    Raises RequestNotFound, DeadNotFound, RequestEnded (its end is near, or its results have
    expired), NotDurable.
    """
    moved, is_first = 0, True
    for _ in range(_ROUNDS):
        chosen, missing = await choose(request_id, choice)
        if missing and is_first:
            raise none_with(request_id, choice, missing)
        requeue = _Requeue(request_id, by)
        is_through = await requeue.run(chosen)
        moved, is_first = moved + requeue.moved, False
        if is_through:
            return moved
    raise RequestEnded(
        f"request {request_id} has ended {_ROUNDS} times while its dead sub-requests were "
        f"requeued, {moved:,} of them so far: requeue the others when it has ended"
    )


class _Requeue:
    """One requeue of chosen dead sub-requests, in calls of 200. `moved` is how many wait again."""

    def __init__(self, request_id: str, by: str) -> None:
        self._id, self._by, self._holder = request_id, by, new_op()
        self._queue = ""
        self._ending, self._intent = "", Intent(0, "0")  # it runs
        self.moved = 0

    async def run(self, chosen: ChosenDead) -> bool:
        """Requeues the chosen ones; returns False if the request has ended meanwhile.

        Then some of them may wait again, or more may have died before the end.
        """
        self._queue, durable = await read(self._id, "queue", "durable")
        await self._look()
        first = 0
        while first < len(chosen):
            ids = chosen.ids(first, first + CALL_REQUEUED)
            reply = await self._call(ids, has_more=first + len(ids) < len(chosen))
            if reply.is_late:  # the auditor gave the intent up: a later one is needed
                await self._announce(reply.seen)
                continue
            if reply.is_ended:
                await retire(self._queue, self._id, reply.summary)
                if self.moved and reply.summary.is_cancelled:
                    raise RequestEnded(
                        f"request {self._id} was cancelled while its dead sub-requests were "
                        f"requeued: {self.moved:,} of them had been"
                    )
                return False
            if not (reply.is_ok or reply.is_over):
                await self._withdraw()
                raise self._refused(reply)
            await self._follow(reply)
            first += reply.looked
        await self._withdraw()
        if self.moved and int(durable or 0):
            await confirm_requeue(self._id, int(durable))
        return True

    async def _look(self) -> None:
        """Finds whether the request has ended; then logs that, and announces another opening."""
        reply = await glance("", self._id)
        if reply.is_gone:
            raise not_found(self._id)
        if reply.is_ended:
            self._ending = reply.summary.ending
            await retire(self._queue, self._id, reply.summary)
            await self._announce()

    async def _announce(self, above: int = 0) -> None:
        names = (keys.active(self._queue), keys.conf(self._queue))
        grace = settings.INTENT_GRACE_MS
        reply = await scripts.intend(names, grace=grace, above=above, named="", ids=[self._id])
        (self._intent,) = read_intents([self._id], reply.shards, reply.scores)

    async def _withdraw(self) -> None:
        """Takes the intent back if the request was not opened."""
        if self._ending:
            await withdraw(self._queue, self._id, self._intent)

    def _call(self, ids: list[str], *, has_more: bool) -> Call[scripts.RequeueDeadReply]:
        return scripts.requeue_dead(
            keys.request_keys(self._id),
            op=new_op(),
            ending=self._ending,
            intent=self._intent.score,
            shards=self._intent.shards,
            holder=self._holder,
            more="1" if has_more else "",
            by=self._by,
            ids=ids,
        )

    async def _follow(self, reply: scripts.RequeueDeadReply) -> None:
        """Dispatches the tokens of a call, or logs the end that it has led to."""
        self.moved += reply.moved
        if reply.moved:
            self._ending = ""  # it is open again
        if reply.is_over:
            await retire(self._queue, self._id, reply.summary)
        elif calls := follow_up(self._queue, (self._id, reply)):
            await Batch(calls)

    def _refused(self, reply: scripts.RequeueDeadReply) -> FairlaneError:
        if reply.is_gone:
            return not_found(self._id)
        if reply.is_expired:
            why = "has ended, and its results have expired: submit the work again"
        elif reply.is_abandoned:
            why = "was never complete, because its producer gave it up: submit it again"
        else:
            why = (
                "is being cancelled or past its deadline: requeue its dead sub-requests when it "
                "has ended"
            )
        return RequestEnded(f"request {self._id} {why}")


async def drop_dead(request_id: str, choice: DeadChoice = ALL) -> int:
    """Deletes dead sub-requests with their bodies and errors; returns how many.

    Counts and results stay; a result no longer has the text of its error.

    Raises RequestNotFound, DeadNotFound.
    """
    chosen, missing = await choose(request_id, choice)
    if missing:
        raise none_with(request_id, choice, missing)
    dropped = 0
    size = await page_size(request_id)  # the script reads what it drops
    for last in range(len(chosen), 0, -size):
        ids = chosen.ids(max(0, last - size), last)
        dropped += await scripts.drop_dead(keys.request_keys(request_id), ids=ids)
    return dropped
