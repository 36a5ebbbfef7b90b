"""Changes requests: one, or all that a selection names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairlane import settings
from fairlane.errors import (
    DeadNotFound,
    FairlaneError,
    InvalidArgument,
    RequestEnded,
    RequestNotEnded,
    RequestNotFound,
    not_found,
)
from fairlane.model import ENDED, OUTCOMES, RUNNING, DeadChoice, ending_words
from fairlane.operations.dead_letters import (
    ALL,
    count_chosen,
    dated,
    drop_dead,
    requeue_dead,
)
from fairlane.operations.find import Labels, RequestFilter, filter_of, unfinished
from fairlane.operations.rates import NewRate, check_rate, no_rate, set_rates
from fairlane.operations.request_state import completion, how_it_ended
from fairlane.operations.tokens import (
    count_stop,
    count_time_limit,
    follow_up,
    reschedule_active,
    retire_all,
    seen_to_exist,
    was_seen,
)
from fairlane.operations.workers import glances
from fairlane.options import check_option, check_option_names, read_option
from fairlane.options_table import field_of, options_of
from fairlane.protocol import keys, scripts
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Call, Command, call_each, run_all, run_each_or_error
from fairlane.records import ChangeReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Unpack

    from fairlane.model import DeadFilters, RequestChoice
    from fairlane.option_types import ChangeOptions
    from fairlane.protocol.lua import Reply
    from fairlane.protocol.scripts import (
        CancelReply,
        DeleteReply,
        GlanceReply,
        PauseReply,
        ResumeReply,
    )
    from fairlane.protocol.steps import Arg, Operation
    from fairlane.records import Completion

AnyReply = TypeVar("AnyReply", bound="Reply")


# ------------------------------------------------------------------ change
# Changes of a request that runs: pause, resume, cancel, another limit, priority or deadline.


async def pause(request_id: str) -> str:
    """Starts no more sub-requests until the request is resumed; returns the state now in force.

    The state is `paused`; `cancelling` or `expiring` if the end of the request is near anyway;
    or `active` if its deadline has just passed.
    Raises RequestNotFound, RequestEnded.
    """
    reply = await _change(request_id, scripts.pause(keys.request_keys(request_id)), "paused")
    return str(reply.state.decode())


async def resume(request_id: str) -> str:
    """Continues a paused request; returns the state now in force: see pause.

    Raises RequestNotFound, RequestEnded.
    """
    call = scripts.resume(keys.request_keys(request_id))
    reply = await _change(request_id, call, "resumed")
    return str(reply.state.decode())


async def set_limit(request_id: str, limit: int) -> None:
    """Sets how many workers may hold slices from now on; leases above that are finished.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    names = keys.request_keys(request_id)
    call = scripts.set_limit(names, limit=check_option("limit", limit))
    await _change(request_id, call, "given another limit")


async def set_priority(request_id: str, priority: int) -> None:
    """Moves the tokens of a request to the lane `priority`; slices that are held are finished.

    Raises InvalidArgument, RequestNotFound, RequestEnded.
    """
    names = keys.request_keys(request_id)
    call = scripts.set_priority(names, priority=check_option("priority", priority))
    await _change(request_id, call, "given another priority")


async def set_share(request_id: str, share: int) -> None:
    """Gives the tenant of a request another share of the workers' time, 1 to 999.

    Raises InvalidArgument, also if it names no tenant, RequestNotFound, RequestEnded.
    """
    call = scripts.set_share(keys.request_keys(request_id), share=check_option("share", share))
    if (await _change(request_id, call, "given another share")).is_plain:
        raise no_tenant(request_id)


def no_tenant(request_id: str) -> InvalidArgument:
    """Returns the error of a share for a request without a tenant."""
    return InvalidArgument(
        f"request {request_id} names no tenant, so it has no share: submit it with a tenant"
    )


async def set_deadline(request_id: str, deadline_ms: int) -> None:
    """Starts no sub-request later than `deadline_ms` from now; 0 = there is no deadline any more.

    Raises InvalidArgument, RequestNotFound, RequestEnded (also if its end is near).
    """
    names = keys.request_keys(request_id)
    call = scripts.set_deadline(names, deadline_ms=check_option("deadline", deadline_ms))
    reply = await _change(request_id, call, "given another deadline")
    if reply.is_ending:
        raise RequestEnded(
            f"request {request_id} is being cancelled or past its deadline: "
            "it cannot be given another deadline"
        )
    stored = await Command(b"HGET", keys.request_hash(request_id), b"queue")
    await look_by((stored or b"").decode(), [request_id], deadline_ms)


async def set_time_limit(request_id: str, time_limit_ms: int) -> None:
    """Ends calls of the handler that take longer, also those that run; 0 = there is no limit.

    A call that runs already goes on for a second at least. Raises InvalidArgument, RequestNotFound,
    RequestEnded.
    """
    names = keys.request_keys(request_id)
    given = check_option("time_limit", time_limit_ms)
    await _change(
        request_id, scripts.set_time_limit(names, time_limit_ms=given), "given another time limit"
    )
    stored = await Command(b"HGET", keys.request_hash(request_id), b"queue")
    await count_time_limit((stored or b"").decode())


async def look_by(queue: str, ids: Sequence[str], deadline_ms: int) -> None:
    """Lets maintenance look at requests when their new deadline passes, if not earlier anyway.

    An entry of `active` without a fraction is an intent, and is looked at within seconds.
    """
    if not deadline_ms:
        return
    active = keys.active(queue)
    *scores, time = await Batch(
        [*(Command(b"ZSCORE", active, request_id) for request_id in ids), Command(b"TIME")]
    )
    due = time_ms(time) + deadline_ms
    rows: list[Arg] = []
    for request_id, score in zip(ids, scores, strict=True):
        if score is not None and was_seen(score) and float(score) > due:
            rows += [request_id, score, seen_to_exist(due)]
    if rows:
        await reschedule_active(queue, rows)


async def cancel(request_id: str, reason: str, *, queue: str | None = None) -> bool:
    """Cancels a request; True if it has ended, False while slices are held. RequestNotFound.

    `queue` is where its tokens go if a producer creates the request only after its hash was read.
    """
    if not isinstance(reason, str):
        raise InvalidArgument(f"reason {reason!r} is not valid: words are expected")
    names = keys.request_keys(request_id)
    stored = await Command(b"HGET", keys.request_hash(request_id), b"queue")
    reply = await scripts.cancel(names, reason=reason)
    if reply.is_gone:
        raise not_found(request_id)
    home = stored.decode() if stored else (queue or "")
    if calls := follow_up(home, (request_id, reply)):
        await Batch(calls)
    if not reply.is_ended:
        await count_stop(home)
    return reply.is_ended


async def _change(request_id: str, call: Call[AnyReply], change: str) -> AnyReply:
    """Runs the script and follows up its reply. `change` names the change in a RequestEnded."""
    reply = await call
    stored = await Command(b"HGET", keys.request_hash(request_id), b"queue")
    if reply.is_gone or stored is None:
        raise not_found(request_id)
    if calls := follow_up(stored.decode(), (request_id, reply)):
        await Batch(calls)
    if reply.is_ended:
        shown = how_it_ended(reply.summary)
        raise RequestEnded(f"request {request_id} has ended ({shown}): it cannot be {change}")
    return reply


# ------------------------------------------------------------------ selection
# Chooses the requests of a change: by their ids, or by filters, each of them once.
#
# The walk reads all unfinished requests and the completion log, 1,000 entries a call, and one
# HMGET for each request, 100 in a round trip. It keeps what it chose: about 200 bytes a request.


TOGETHER = 100  # requests that are changed in one batch
_PART = 1_000  # entries of `active`, or of the log, that one call reads
_FIELDS = ("state", "queue", "born", "reopened", *Labels._fields)


class Chosen(NamedTuple):
    """A request to change, and the life that was chosen: when that began, in ms."""

    id: str
    queue: str
    born: int


@dataclass(frozen=True, slots=True)
class Selection:
    """A change, and the requests that it is for.

    `dead` is how many dead sub-requests they have, if filters chose them for a change of those.
    """

    change: Change
    requests: tuple[Chosen, ...]
    dead: int = 0

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def ids(self) -> list[str]:
        """Returns the ids: unfinished requests first, the most urgent of them at the beginning."""
        return [one.id for one in self.requests]

    def parts(self) -> Iterator[tuple[Chosen, ...]]:
        """Yields the requests in batches."""
        for at in range(0, len(self.requests), TOGETHER):
            yield self.requests[at : at + TOGETHER]


def choose(
    queue: str,
    change: Change,
    ids: str | Iterable[str] | None,
    **wanted: Unpack[RequestChoice],
) -> Operation[Selection]:
    """Returns the operation that chooses by ids or by filters. Raises InvalidArgument."""
    filters: dict[str, Any] = {**wanted}
    everything = filters.pop("everything", False)
    accepted = filter_of(**filters)
    ways = (ids is not None) + (accepted != RequestFilter()) + bool(everything)
    if ways != 1:
        what = "two ways of choice" if ways else "no request is chosen"
        raise InvalidArgument(f"{what}: give ids, or filters, or everything=True")
    if ids is not None:
        return select_ids(change, ids)
    return select(queue, change, accepted)


async def select_ids(change: Change, ids: str | Iterable[str]) -> Selection:
    """Returns the requests with these ids, each once. Raises InvalidArgument, RequestNotFound."""
    given = (ids,) if isinstance(ids, str) else ids
    names = [keys.check_name("request id", name) for name in dict.fromkeys(given)]
    replies = await run_all([hmget(name, *_FIELDS) for name in names])
    found = []
    for name, reply in zip(names, replies, strict=True):
        state, queue, born, *_ = parse_fields(_FIELDS, reply)
        if state in {"", "abandoned"}:
            raise not_found(name)
        found.append(Chosen(name, queue, int(born or 0)))
    return Selection(change, tuple(found))


async def select(queue: str, change: Change, wanted: RequestFilter) -> Selection:
    """Returns the requests of a queue that the filter accepts and the change can change.

    Raises InvalidArgument if the filter's states exclude those of the change, and if the change is
    for what died since a release, and the queue has none.
    """
    if change.choice.since_release:  # also if no request matches: nothing else would say so
        await dated(queue, change.choice)
    asked = wanted.states or frozenset(change.states)
    states = frozenset(one for one in asked if OUTCOMES.get(one, one) in change.states)
    if not states:
        raise InvalidArgument(
            f"state {', '.join(sorted(wanted.states))} is not valid: "
            f"only requests in state {' or '.join(change.states)} can be {change.verb}"
        )
    narrowed = replace(wanted, states=states)
    _, time = await Batch([Command(b"EXISTS", keys.active(queue)), Command(b"TIME")])
    found = dict[str, Chosen]()
    if narrowed.wants_any(RUNNING):
        await _unfinished(queue, narrowed, time_ms(time), found)
    if narrowed.wants_any(ENDED):
        await _ended(queue, narrowed, time_ms(time), found)
    chosen = list(found.values())
    if change.word in {"requeue_dead", "drop_dead"}:
        counts = await run_all([Command(b"XLEN", keys.dead(one.id)) for one in chosen])
        chosen = [one for one, count in zip(chosen, counts, strict=True) if count]
        if change.choice != ALL:
            counts = [await count_chosen(one.id, change.choice) for one in chosen]
            chosen = [one for one, count in zip(chosen, counts, strict=True) if count]
        return Selection(change, tuple(chosen), sum(counts))
    return Selection(change, tuple(chosen))


async def _unfinished(
    queue: str, wanted: RequestFilter, now_ms: int, found: dict[str, Chosen]
) -> None:
    """Adds the accepted requests of `active`, the most urgent first."""
    rows, scan = [], "0"
    while True:
        cursor, flat = await Command(b"ZSCAN", keys.active(queue), scan, b"COUNT", _PART)
        ids = [name.decode("utf-8", "replace") for name in flat[::2]]
        rows += [
            row
            for row in await unfinished(queue, ids, frozenset(ids))
            if wanted.accepts(row, now_ms) and wanted.accepts_labels(row.labels)
        ]
        scan = cursor.decode()
        if scan == "0":
            break
    found.update((row.id, Chosen(row.id, queue, row.submitted_ms)) for row in sorted(rows))


async def _ended(queue: str, wanted: RequestFilter, now_ms: int, found: dict[str, Chosen]) -> None:
    """Adds the accepted endings of the completion log whose requests are still kept."""
    newest = "+"
    while True:
        log = keys.completed(queue)
        entries = await Command(b"XREVRANGE", log, newest, "-", b"COUNT", _PART)
        ended = [completion(queue, *entry) for entry in entries]
        asked = [one for one in ended if one.id not in found and wanted.accepts(one, now_ms)]
        for one in await _kept(queue, wanted, asked):
            found.setdefault(one.id, Chosen(one.id, queue, one.submitted_ms))
        if len(entries) < _PART:
            break
        newest = f"({ended[-1].log_id}"


async def _kept(queue: str, wanted: RequestFilter, asked: list[Completion]) -> list[Completion]:
    """Returns those whose life is still kept, with the labels that are wanted."""
    replies = await run_all([hmget(one.id, *_FIELDS) for one in asked])
    kept = []
    for one, reply in zip(asked, replies, strict=True):
        state, home, born, reopened, *texts = parse_fields(_FIELDS, reply)
        is_same = state in ENDED and home == queue and born == str(one.submitted_ms)
        is_same = is_same and int(reopened or 0) == one.reopened
        if is_same and wanted.accepts_labels(Labels(*texts)):
            kept.append(one)
    return kept


# ------------------------------------------------------------------ apply
# Makes one change to many requests, a bounded batch at a time; each batch may be repeated.


Replies = dict[str, "AnyReply | FairlaneError"]


async def apply(selection: Selection, report: ChangeReport | None = None) -> ChangeReport:
    """Changes the requests, and counts in `report` after each batch what became of them.

    Raises the errors of Redis, and then `report` shows how far it came. A repeat is safe.
    """
    report = ChangeReport() if report is None else report
    for part in selection.parts():
        for queue in dict.fromkeys(one.queue for one in part):
            own = [one for one in part if one.queue == queue]
            own = await _same_lives(own, report)
            await _KINDS[selection.change.word](queue, selection.change, own, report)
    return report


async def set_one(request_id: str, change: Change) -> None:
    """Gives one request all values of a change, or none: see _set.

    Raises InvalidArgument for a share without a tenant or a weight without a rate, RequestNotFound,
    and RequestEnded, also if a deadline is to change while the end of the request is near.
    """
    report = await apply(await select_ids(change, [request_id]))
    for error in report.failed.values():
        raise error
    if report.ended:
        state, *counts = await read(request_id, "state", "done", "dead", "reopened")
        shown = ending_words(state, *(int(count or 0) for count in counts))
        why = (
            f"has ended ({shown})" if state in ENDED else "is being cancelled or past its deadline"
        )
        raise RequestEnded(f"request {request_id} {why}: it cannot be changed")


async def _same_lives(chosen: Sequence[Chosen], report: ChangeReport) -> list[Chosen]:
    """Leaves out those whose id has another life by now; the chosen one has ended."""
    rows = await run_each_or_error([hmget(one.id, "born") for one in chosen])
    same = []
    for one, row in zip(chosen, rows, strict=True):
        # What cannot be read, or is gone, is for the script to report.
        born = "" if isinstance(row, FairlaneError) else parse_fields(("born",), row)[0]
        if born in {"", str(one.born)}:
            same.append(one)
        else:
            report.ended += 1
    return same


# ------------------------------------------------------------------ scripts, in batches


async def _switch(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> None:
    """Pauses or resumes; a request whose end is near stays as it is."""
    wanted = b"paused" if change.word == "pause" else b"active"
    ids = _ids(chosen)
    replies: Mapping[str, PauseReply | ResumeReply | FairlaneError]
    if change.word == "pause":
        replies = await _send(queue, scripts.pause, {}, ids)
    else:
        replies = await _send(queue, scripts.resume, {}, ids)
    for name, reply in replies.items():
        if isinstance(reply, FairlaneError):
            report.failed[name] = reply
        elif reply.is_ok and reply.state == wanted:
            report.changed += 1
        else:
            report.ended += 1


async def _set(queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport) -> None:
    """Sets one value after the other, the deadline first, because only its script may refuse.

    What else a request may refuse is read before anything is written. So a request gets all values
    or none, unless it ends meanwhile or Redis fails: then a repeat sets the others.
    """
    new = NewRate(change.rate, change.burst, change.weight)
    values: dict[str, Any] = {
        "deadline": change.deadline_ms,
        "share": change.share,
        "time_limit": change.time_limit_ms,
        "rate": new if new != NewRate(None) else None,
        "limit": change.limit,
        "priority": change.priority,
    }
    left = await _willing(change, _ids(chosen), report)
    for what, value in values.items():
        if value is None:
            continue
        if what == "rate":
            replies = await set_rates(queue, left, value)
        else:
            given = {f"{what}_ms" if what in _IN_MS else what: value}
            replies = await _send(queue, _SETS[what], given, left)
        left = []
        for name, reply in replies.items():
            if isinstance(reply, FairlaneError):
                report.failed[name] = reply
            elif reply.is_ok:
                left.append(name)
            else:
                report.ended += 1
        if what == "deadline":
            await look_by(queue, left, value)
        if what == "time_limit" and left:
            await count_time_limit(queue)
    report.changed += len(left)


async def _willing(change: Change, ids: list[str], report: ChangeReport) -> list[str]:
    """Leaves out requests without a tenant to have a share, or without a rate to have a weight."""
    needs_rate = change.weight is not None and change.rate is None
    if change.share is None and not needs_rate:
        return ids
    names = ("born", "tenant", "rates")
    rows = await run_each_or_error([hmget(name, *names) for name in ids])
    found = []
    for name, row in zip(ids, rows, strict=True):
        born, tenant, rates = (
            ("",) * 3 if isinstance(row, FairlaneError) else parse_fields(names, row)
        )
        # What cannot be read, or is gone, is for the script to report.
        if born and change.share is not None and not tenant:
            report.failed[name] = no_tenant(name)
        elif born and needs_rate and not rates:
            report.failed[name] = no_rate(name)
        else:
            found.append(name)
    return found


async def _cancel(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> None:
    replies = await _cancelled(queue, change, _ids(chosen))
    for name, reply in replies.items():
        if isinstance(reply, FairlaneError):
            report.failed[name] = reply
        elif reply.is_ok or (reply.is_ended and reply.summary.is_cancelled):
            report.changed += 1
        else:
            report.ended += 1


async def _cancelled(queue: str, change: Change, ids: list[str]) -> Replies[CancelReply]:
    replies = await _send(queue, scripts.cancel, {"reason": change.reason}, ids)
    if any(not isinstance(one, FairlaneError) and one.is_ok for one in replies.values()):
        await count_stop(queue)
    return replies


_SETS: dict[str, Callable[..., Call[Any]]] = {
    "deadline": scripts.set_deadline,
    "share": scripts.set_share,
    "limit": scripts.set_limit,
    "priority": scripts.set_priority,
    "time_limit": scripts.set_time_limit,
}
_IN_MS = {"deadline", "time_limit"}


async def _send(
    queue: str, script: Callable[..., Call[AnyReply]], given: dict[str, Any], ids: list[str]
) -> Replies[AnyReply]:
    """Runs a script for each request, and dispatches what the replies ask for."""
    answers = await call_each([script(keys.request_keys(name), **given) for name in ids])
    replies = dict(zip(ids, answers, strict=True))
    good = [(name, one) for name, one in replies.items() if not isinstance(one, FairlaneError)]
    await run_all(follow_up(queue, *good))
    return replies


# ------------------------------------------------------------------ what takes more than a script


async def _delete(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> None:
    if change.cancels:
        await _cancelled(queue, change, _ids(chosen))
    for name, outcome in (await delete_each(queue, chosen)).items():
        _count(report, name, outcome)


async def _requeue(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> None:
    """Requeues the dead of one request after the other: that takes several calls for each."""
    del queue
    for one in chosen:
        try:
            count = await requeue_dead(one.id, change.choice, change.by)
        except (DeadNotFound, RequestEnded, RequestNotFound) as error:
            _count(report, one.id, error)
        else:
            report.dead += count
            _count(report, one.id, count > 0)


async def _drop(queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport) -> None:
    """Drops the dead of one request after the other."""
    del queue
    for one in chosen:
        try:
            count = await drop_dead(one.id, change.choice)
        except (DeadNotFound, RequestNotFound) as error:
            _count(report, one.id, error)
        else:
            report.dead += count
            _count(report, one.id, count > 0)


def _count(report: ChangeReport, name: str, outcome: Outcome) -> None:
    if isinstance(outcome, FairlaneError):
        report.failed[name] = outcome
    elif outcome:
        report.changed += 1
    else:
        report.ended += 1


def _ids(chosen: Sequence[Chosen]) -> list[str]:
    return [one.id for one in chosen]


_KINDS = {
    "pause": _switch,
    "resume": _switch,
    "set": _set,
    "cancel": _cancel,
    "requeue_dead": _requeue,
    "drop_dead": _drop,
    "delete": _delete,
}


# ------------------------------------------------------------------ values
# What is to become of many requests: one change, with its values checked.


_GOING = ("active", "paused")
_KEPT = tuple(
    state for state in ENDED if state != "lost"
)  # there is nothing to change in a lost one


@dataclass(frozen=True, slots=True)
class Change:
    """One change of many requests; the methods of its class make it.

    `states` are those in which a request can be changed so; requests in others are not chosen.
    `verb` says what becomes of a request: "cancelled". `by` names the caller to those that it
    reopens.
    """

    word: str
    verb: str
    states: tuple[str, ...]
    reason: str = ""
    limit: int | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    rate: str | None = None
    burst: int | None = None
    weight: int | None = None
    share: int | None = None
    time_limit_ms: int | None = None
    choice: DeadChoice = field(default_factory=DeadChoice)
    by: str = ""
    cancels: bool = False

    @classmethod
    def cancel(cls, reason: str = "cancelled by the caller") -> Change:
        """Cancels requests that have not ended. Raises InvalidArgument."""
        if not isinstance(reason, str):
            raise InvalidArgument(f"reason {reason!r} is not valid: words are expected")
        return cls("cancel", "cancelled", (*_GOING, "expiring"), reason=reason)

    @classmethod
    def pause(cls) -> Change:
        """Pauses requests until they are resumed."""
        return cls("pause", "paused", ("active",))

    @classmethod
    def resume(cls) -> Change:
        """Continues paused requests."""
        return cls("resume", "resumed", ("paused",))

    @classmethod
    def set(cls, **options: Unpack[ChangeOptions]) -> Change:
        """Gives requests what is named here; the deadline counts from now, 0 = none.

        Each request keeps its rate key and its tenant. Raises InvalidArgument, also if there is
        nothing to set.
        """
        given: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        known = {option.name: option for option in options_of("set")}
        check_option_names(given, known)
        rate = {name: given.pop(name) for name in ("rate", "burst", "weight") if name in given}
        check_rate(NewRate(**{"rate": None, **rate}))
        if not given and not rate:
            raise InvalidArgument(
                "there is nothing to set: give a limit, a priority, a deadline, a time limit, a "
                "rate, a weight or a share"
            )
        fields = {field_of(known[name]): read_option(name, given[name]) for name in given}
        return cls("set", "changed", _GOING, **rate, **fields)

    @classmethod
    def requeue_dead(cls, **wanted: Unpack[DeadFilters]) -> Change:
        """Runs the dead sub-requests of requests again: all, or those that the filters choose.

        Ended requests are opened again for that.
        """
        choice = DeadChoice.of(**wanted)
        return cls("requeue_dead", "requeued", (*_GOING, *_KEPT), choice=choice)

    @classmethod
    def drop_dead(cls, **wanted: Unpack[DeadFilters]) -> Change:
        """Deletes the dead sub-requests of requests: all, or those that the filters choose."""
        choice = DeadChoice.of(**wanted)
        verb = "relieved of dead sub-requests"
        return cls("drop_dead", verb, (*_GOING, *_KEPT), choice=choice)

    @classmethod
    def delete(cls, *, cancel: bool = False) -> Change:
        """Deletes ended requests; with `cancel`, others are cancelled first."""
        running = (*_GOING, "expiring", "cancelling") if cancel else ()
        return cls("delete", "deleted", (*running, *_KEPT), cancels=cancel)


# ------------------------------------------------------------------ deletion
# Deletes ended requests: first their endings are logged, then their keys go.
#
# A marker stays for ten minutes. It refuses late copies of the producer's calls, and it lets a new
# life of the id begin later than the deleted one, so that the log holds the endings of both.


Outcome = FairlaneError | bool  # True = deleted, False = gone, or another life has the id


async def delete_each(queue: str, chosen: Sequence[Chosen]) -> dict[str, Outcome]:
    """Deletes the chosen lives of one queue, a batch of them; returns what became of each."""
    replies = await glances("", [one.id for one in chosen])
    found = dict[str, Outcome]()
    ended: dict[Chosen, GlanceReply] = {}
    for one in chosen:
        reply = replies[one.id]
        if isinstance(reply, FairlaneError):
            found[one.id] = reply
        elif reply.is_ended and reply.summary.born == one.born:
            ended[one] = reply
        elif reply.is_ok:
            found[one.id] = _not_ended(one.id)
        else:
            found[one.id] = False
    await run_all(retire_all(queue, [(one.id, it.summary) for one, it in ended.items()]))
    _, time = await Batch([Command(b"EXISTS", keys.active(queue)), Command(b"TIME")])
    seen = time_ms(time) + 2 * settings.INTENT_GRACE_MS
    calls = [delete(one.id, it.summary.ending, seen) for one, it in ended.items()]
    answers = await call_each(calls)
    for one, answer in zip(ended, answers, strict=True):
        found[one.id] = _outcome(one.id, answer)
    return found


def delete(request_id: str, ending: str, seen: int) -> Call[DeleteReply]:
    """Returns the call that deletes a life with this ending, which must be in the log.

    Intents up to the score `seen` are given up.
    """
    names = (
        *(*keys.request_keys(request_id), keys.unique_ids(request_id)),
        *(keys.owner(request_id), keys.of_flow(request_id), keys.fed(request_id)),
    )
    return scripts.delete(names, ending=ending, seen=seen, ttl=settings.LEAST_TOMBSTONE_MS)


def _outcome(request_id: str, reply: DeleteReply | FairlaneError) -> Outcome:
    if isinstance(reply, FairlaneError):
        return reply
    if reply.is_alive:  # it was reopened since, or a failover took back its end
        return _not_ended(request_id)
    return not reply.is_other  # gone: the first try, whose reply was lost, has deleted it


def _not_ended(request_id: str) -> RequestNotEnded:
    return RequestNotEnded(
        f"request {request_id} has not ended: cancel it first, and wait until what is held is "
        "returned"
    )
