"""Makes one change to many requests, a bounded batch at a time; each batch may be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import (
    DeadNotFound,
    FairlaneError,
    RequestEnded,
    RequestExists,
    RequestNotFound,
)
from fairlane.found import ENDED, ChangeReport
from fairlane.operations.batching import call_each, run_all, run_each_or_error
from fairlane.operations.control.change import look_by, no_tenant
from fairlane.operations.control.requeue import drop_dead, requeue_dead
from fairlane.operations.lease.follow_up import follow_up
from fairlane.operations.lease.tokens import count_stop
from fairlane.operations.many.deletion import delete_each
from fairlane.operations.many.selection import select_ids
from fairlane.operations.many.set_rate import NewRate, no_rate, set_rates
from fairlane.protocol import keys
from fairlane.protocol.request_hash import hmget, parse_fields, read
from fairlane.protocol.scripts import library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.operations.many.change import Change
    from fairlane.operations.many.deletion import Outcome
    from fairlane.operations.many.selection import Chosen, Selection
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

Replies = dict[str, "Reply | FairlaneError"]


def apply(selection: Selection, report: ChangeReport | None = None) -> Operation[ChangeReport]:
    """Changes the requests, and counts in `report` after each batch what became of them.

    Raises the errors of Redis, and then `report` shows how far it came. A repeat is safe.
    """
    report = ChangeReport() if report is None else report
    for part in selection.parts():
        for queue in dict.fromkeys(one.queue for one in part):
            own = [one for one in part if one.queue == queue]
            own = yield from _same_lives(own, report)
            yield from _KINDS[selection.change.word](queue, selection.change, own, report)
    return report


def set_one(request_id: str, change: Change) -> Operation[None]:
    """Gives one request all values of a change, or none: see _set.

    Raises InvalidArgument for a share without a tenant or a weight without a rate, RequestNotFound,
    and RequestEnded, also if a deadline is to change while the end of the request is near.
    """
    report = yield from apply((yield from select_ids(change, [request_id])))
    for error in report.failed.values():
        raise error
    if report.ended:
        (state,) = yield from read(request_id, "state")
        why = (
            f"has ended ({state})" if state in ENDED else "is being cancelled or past its deadline"
        )
        raise RequestEnded(f"request {request_id} {why}: it cannot be changed")


def _same_lives(chosen: Sequence[Chosen], report: ChangeReport) -> Operation[list[Chosen]]:
    """Leaves out those whose id has another life by now; the chosen one has ended."""
    rows = yield from run_each_or_error([hmget(one.id, "born") for one in chosen])
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


def _switch(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> Operation[None]:
    """Pauses or resumes; a request whose end is near stays as it is."""
    wanted = b"paused" if change.word == "pause" else b"active"
    for name, reply in (yield from _send(queue, change.word, {}, _ids(chosen))).items():
        if isinstance(reply, FairlaneError):
            report.failed[name] = reply
        elif reply.is_ok and reply.state == wanted:
            report.changed += 1
        else:
            report.ended += 1


def _set(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> Operation[None]:
    """Sets one value after the other, the deadline first, because only its script may refuse.

    What else a request may refuse is read before anything is written. So a request gets all values
    or none, unless it ends meanwhile or Redis fails: then a repeat sets the others.
    """
    new = NewRate(change.rate, change.burst, change.weight)
    values: dict[str, Any] = {
        "deadline": change.deadline_ms,
        "share": change.share,
        "rate": new if new != NewRate(None) else None,
        "limit": change.limit,
        "priority": change.priority,
    }
    left = yield from _willing(change, _ids(chosen), report)
    for what, value in values.items():
        if value is None:
            continue
        if what == "rate":
            replies = yield from set_rates(queue, left, value)
        else:
            given = {"deadline_ms" if what == "deadline" else what: value}
            replies = yield from _send(queue, f"set_{what}", given, left)
        left = []
        for name, reply in replies.items():
            if isinstance(reply, FairlaneError):
                report.failed[name] = reply
            elif reply.is_ok:
                left.append(name)
            else:
                report.ended += 1
        if what == "deadline":
            yield from look_by(queue, left, value)
    report.changed += len(left)


def _willing(change: Change, ids: list[str], report: ChangeReport) -> Operation[list[str]]:
    """Leaves out requests without a tenant to have a share, or without a rate to have a weight."""
    needs_rate = change.weight is not None and change.rate is None
    if change.share is None and not needs_rate:
        return ids
    names = ("born", "tenant", "rates")
    rows = yield from run_each_or_error([hmget(name, *names) for name in ids])
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


def _cancel(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> Operation[None]:
    replies = yield from _cancelled(queue, change, _ids(chosen))
    for name, reply in replies.items():
        if isinstance(reply, FairlaneError):
            report.failed[name] = reply
        elif reply.is_ok or (reply.is_ended and reply.summary.is_cancelled):
            report.changed += 1
        else:
            report.ended += 1


def _cancelled(queue: str, change: Change, ids: list[str]) -> Operation[Replies]:
    replies = yield from _send(queue, "cancel", {"reason": change.reason}, ids)
    if any(not isinstance(one, FairlaneError) and one.is_ok for one in replies.values()):
        yield from count_stop(queue)
    return replies


def _send(queue: str, script: str, given: dict[str, Any], ids: list[str]) -> Operation[Replies]:
    """Runs a script for each request, and dispatches what the replies ask for."""
    run = getattr(library(), script)
    answers = yield from call_each([run(keys.request_keys(name), **given) for name in ids])
    replies = dict(zip(ids, answers, strict=True))
    good = [(name, one) for name, one in replies.items() if not isinstance(one, FairlaneError)]
    yield from run_all(follow_up(queue, *good))
    return replies


# ------------------------------------------------------------------ what takes more than a script


def _delete(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> Operation[None]:
    if change.cancels:
        yield from _cancelled(queue, change, _ids(chosen))
    for name, outcome in (yield from delete_each(queue, chosen)).items():
        _count(report, name, outcome)


def _requeue(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> Operation[None]:
    """Requeues the dead of one request after the other: that takes several calls for each."""
    del queue
    for one in chosen:
        try:
            _, count = yield from requeue_dead(one.id, change.choice)
        except (DeadNotFound, RequestEnded, RequestNotFound) as error:
            _count(report, one.id, error)
        else:
            report.dead += count
            _count(report, one.id, count > 0)


def _drop(
    queue: str, change: Change, chosen: Sequence[Chosen], report: ChangeReport
) -> Operation[None]:
    """Drops the dead of one request after the other."""
    del queue
    for one in chosen:
        try:
            count = yield from drop_dead(one.id, change.choice)
        except (DeadNotFound, RequestExists, RequestNotFound) as error:
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
