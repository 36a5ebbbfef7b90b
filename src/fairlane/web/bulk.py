"""/v1/bulk: one change of many requests, which are counted first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from fairlane.operations.change import Change
from fairlane.web.answers import Refusal, answer
from fairlane.web.route import MOST, Endpoint, caller_of, check_own, document
from fairlane.web.schemas import Changes, Few, RequestFields
from fairlane.web.trail import recorded, trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.operations.change import Selection
    from fairlane.web.app import Site


_LISTED = 1_000  # ids, and errors, of an answer
MOST_IDS = 10_000  # of one call: they are checked before the first one is read
_MOST = 100_000  # requests of one call, by a filter
# What chooses dead sub-requests, by its name in the library.
_DEAD = {
    "fingerprints": "fingerprint",
    "tasks": "task",
    "error": "error",
    "since": "since",
    "until": "until",
}
_ALLOWED = {
    "cancel": {"reason"},
    "set": set(Changes.__struct_fields__),
    "requeue_dead": {*_DEAD},
    "drop_dead": {*_DEAD},
    "delete": {"cancel_first"},
}  # what an action takes; the others take nothing


Ids = Annotated[list[str], msgspec.Meta(max_length=MOST_IDS)]


class Bulk(Changes, kw_only=True, forbid_unknown_fields=True):
    """A change of the requests that `filter` accepts, of `ids`, or of `everything` in the queue.

    `dry_run` counts them. Without it `expected` is required: if more requests match, nothing is
    changed. `cancel` takes `reason`, `requeue_dead` and `drop_dead` take the filters of dead
    sub-requests (`fingerprints`, `tasks`, `error`, `since`, `until`), and `delete` takes
    `cancel_first`. `set` takes what PATCH of a request takes.
    """

    action: Literal["cancel", "pause", "resume", "set", "requeue_dead", "drop_dead", "delete"]
    filter: RequestFields | UnsetType = UNSET
    ids: Ids | UnsetType = UNSET
    everything: bool = False
    dry_run: bool = False
    expected: Annotated[int, msgspec.Meta(ge=0)] | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    fingerprints: Few | UnsetType = UNSET
    tasks: Few | UnsetType = UNSET
    error: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    until: str | UnsetType = UNSET
    cancel_first: bool | UnsetType = UNSET


class BulkReport(msgspec.Struct):
    """What was chosen, and what became of it. Nothing is changed in a dry run.

    `ids` are the first 1,000 of `matched` requests. `ended` had ended or were gone meanwhile.
    `errors` has a sentence for each of up to 1,000 requests that failed. `dead` is how many dead
    sub-requests the requests have, in a dry run for a filter, or how many were requeued or dropped.
    """

    action: str
    dry_run: bool
    matched: int
    ids: list[str]
    changed: int = 0
    ended: int = 0
    failed: int = 0
    dead: int = 0
    errors: dict[str, str] = {}


async def bulk(site: Site, call: Call) -> Response:
    """Counts the requests that would change, or changes them, 100 at a time.

    A repeat changes what is left.
    """
    given = await document(call, Bulk, MOST)
    change = replace(_change(given), by=caller_of(call).id)
    if given.dry_run:  # it changes nothing, so the audit trail does not have it
        return answer(_counted(given, await _select(site, change, given)))
    async with recorded(site, call, "POST /v1/bulk", 200):
        await trail_of(call).note(given=_summary(given), ids=_ids(given))
        selected = await _select(site, change, given)
        await trail_of(call).note(given=f"{_summary(given)} matched={len(selected)}")
        return answer(await _changed(site, given, selected))


def _counted(given: Bulk, selected: Selection) -> BulkReport:
    report = BulkReport(given.action, given.dry_run, len(selected), selected.ids[:_LISTED])
    report.dead = selected.dead
    return report


async def _changed(site: Site, given: Bulk, selected: Selection) -> BulkReport:
    report = _counted(given, selected)
    _confirm(given, selected)
    done = await site.queue.change(selected)
    site.failures.forget()
    site.tasks.forget()
    report.changed, report.ended, report.failed = done.changed, done.ended, len(done.failed)
    report.dead = done.dead
    report.errors = {name: str(error) for name, error in [*done.failed.items()][:_LISTED]}
    return report


def _change(given: Bulk) -> Change:
    """Returns the checked change. Raises Refusal, InvalidArgument."""
    options = {*Changes.__struct_fields__, *_DEAD, "reason", "cancel_first"}
    allowed = _ALLOWED.get(given.action, set())
    named = {name for name in options if getattr(given, name) is not UNSET}
    if extra := sorted(named - allowed):
        takes = " or ".join(sorted(allowed)) or "nothing else"
        raise Refusal(422, f"{extra[0]} is not for the action {given.action}: it takes {takes}")
    values = {name: getattr(given, name) for name in named}
    match given.action:
        case "cancel":
            return Change.cancel(**values)
        case "set":
            return Change.set(**values)
        case "requeue_dead" | "drop_dead":
            make = Change.drop_dead if given.action == "drop_dead" else Change.requeue_dead
            return make(**{_DEAD[name]: value for name, value in values.items()})
        case "delete":
            return Change.delete(cancel=values.get("cancel_first", False))
        case "pause":
            return Change.pause()
        case _:
            return Change.resume()


async def _select(site: Site, change: Change, given: Bulk) -> Selection:
    filters = given.filter.given() if isinstance(given.filter, RequestFields) else {}
    ways = (given.ids is not UNSET) + bool(filters) + given.everything
    if ways != 1:
        what = "two ways of choice" if ways else "no request is chosen"
        raise Refusal(422, f"{what}: give filter, or ids, or everything")
    if isinstance(given.ids, list):
        selected = await site.queue.select(change, given.ids)
        for one in selected.requests:
            check_own(site, one.id, one.queue)
        return selected
    if given.everything:
        return await site.queue.select(change, everything=True)
    return await site.queue.select(change, **filters)


def _confirm(given: Bulk, selected: Selection) -> None:
    """Raises Refusal unless the caller has counted what is changed."""
    count = len(selected)
    if not isinstance(given.expected, int):
        raise Refusal(422, "expected is missing: count with dry_run first, and give what matched")
    if count > given.expected:
        raise Refusal(409, f"{count:,} requests match, not {given.expected:,}: nothing is changed")
    if count > _MOST:
        raise Refusal(422, f"{count:,} requests are too many for a call: choose up to {_MOST:,}")


def _summary(given: Bulk) -> str:
    """Returns what was given but the ids, for the audit trail."""
    return msgspec.json.encode(msgspec.structs.replace(given, ids=UNSET)).decode()


def _ids(given: Bulk) -> str:
    return " ".join(given.ids) if isinstance(given.ids, list) else ""


ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/bulk", handle=bulk, group="Requests", scopes=("operate",),
        summary="Change many requests", takes=Bulk, gives=BulkReport,
        refuses=(404, 409), changes=True, records_itself=True,
    ),
)  # fmt: skip
