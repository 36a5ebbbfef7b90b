"""/v1/schedules: the recurring work of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from fairlane.operations import schedules as change
from fairlane.operations.schedules import check_schedule_name, define
from fairlane.options import named_keys, read_limits
from fairlane.web.answers import answer
from fairlane.web.counts import LOOK
from fairlane.web.route import MOST, Endpoint, caller_of, document
from fairlane.web.schemas import Bodies, RecurringOptions, to_bytes
from fairlane.web.trail import trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call

    from fairlane.operations.schedules import Schedule
    from fairlane.web.app import Site


_TICKS = 5


class NewSchedule(RecurringOptions, kw_only=True, forbid_unknown_fields=True):
    """A schedule, which submits `bodies` at each tick of `cron` in the zone `tz`.

    `missed` says what is submitted of ticks without a worker: skip, one or all, at most `most`.
    """

    name: str
    cron: str
    bodies: Bodies
    tz: str | UnsetType = UNSET
    missed: str | UnsetType = UNSET
    most: int | UnsetType = UNSET


class ScheduleRow(msgspec.Struct):
    """A schedule: `state` is active, paused or overdue, `next` the next five ticks (ISO 8601).

    `of_app` is true if a worker registered it for its app.
    """

    name: str
    state: str
    cron: str
    tz: str
    missed: str
    most: int
    sub_requests: int
    options: dict[str, Any]
    of_app: bool
    next: list[str]


class ScheduleList(msgspec.Struct):
    """All schedules of the queue, the next one first, paused ones last."""

    schedules: list[ScheduleRow]


async def list_schedules(site: Site, _: Call) -> Response:
    """Lists the schedules of the queue, each with its next five ticks."""
    return answer(ScheduleList([_row(one) for one in await site.queue.schedules.list()]))


async def add(site: Site, call: Call) -> Response:
    """Adds a schedule, or gives the one of this name another definition."""
    given = await document(call, NewSchedule, MOST)
    own = {
        name: value
        for name in ("tz", "missed", "most")
        if (value := getattr(given, name)) is not UNSET
    }
    named = {"cron": given.cron, "bodies": len(given.bodies), **own, **given.given()}
    words = " ".join(f"{name}={value!r}" for name, value in named.items())
    await trail_of(call).note(object_id=given.name, given=words)
    check_schedule_name(site.queue.name, given.name)
    chosen = given.given()
    limits = read_limits("limits", chosen.get("limits", {}))
    others = (chosen.get(name, "") for name in ("order_key", "rate_key"))
    caller_of(call).check_keys(named_keys(limits, *others))
    bodies = map(to_bytes, given.bodies)
    wanted = define(cron=given.cron, bodies=bodies, **own, **given.given())
    return answer(
        _row(await site.queue.driver.run(change.put_schedule(site.queue.name, given.name, wanted)))
    )


async def pause(site: Site, call: Call) -> Response:
    """Pauses a schedule: it submits nothing until it is resumed."""
    return answer(_row(await site.queue.schedules.pause(call.path_params["name"])))


async def resume(site: Site, call: Call) -> Response:
    """Resumes a schedule. What was due meanwhile is not submitted."""
    return answer(_row(await site.queue.schedules.resume(call.path_params["name"])))


async def remove(site: Site, call: Call) -> Response:
    """Removes a schedule. Requests of its earlier ticks stay."""
    await site.queue.schedules.remove(call.path_params["name"])
    return Response(status_code=204)


def _row(found: Schedule) -> ScheduleRow:
    return ScheduleRow(
        name=found.name, state=found.state, cron=found.cron, tz=found.tz, missed=found.missed,
        most=found.most, sub_requests=len(found.bodies), options=found.options,
        of_app=found.is_of_app, next=[moment.isoformat() for moment in found.next(_TICKS)],
    )  # fmt: skip


_ONE, _GROUP = "/v1/schedules/{name}", "Schedules"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/schedules", handle=list_schedules, group=_GROUP, scopes=LOOK,
        summary="List the schedules", gives=ScheduleList,
    ),
    Endpoint(
        method="POST", path="/v1/schedules", handle=add, group=_GROUP, scopes=("operate",),
        summary="Add or change a schedule", takes=NewSchedule, gives=ScheduleRow,
        changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/pause", handle=pause, group=_GROUP, scopes=("operate",),
        summary="Pause a schedule", gives=ScheduleRow, refuses=(404, 422), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=("operate",),
        summary="Resume a schedule", gives=ScheduleRow, refuses=(404, 422), changes=True,
    ),
    Endpoint(
        method="DELETE", path=_ONE, handle=remove, group=_GROUP, scopes=("operate",),
        summary="Remove a schedule", status=204, refuses=(404, 422), changes=True,
    ),
)  # fmt: skip
