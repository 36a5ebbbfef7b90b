"""/v1/tasks: the tasks of the queue, and the calls that run unusually long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from fairlane.call_records import TaskPage
from fairlane.operations.task_states import task_page
from fairlane.web.answers import answer
from fairlane.web.route import Endpoint, query
from fairlane.web.waiting import Recent

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site

_REST_S = 3.0  # the dead letters of the queue are counted
MOST_ROWS = 1_000
By = Literal["task", "release"]


class TasksQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One row for each task, or for each task and release of the users' code; the first rows."""

    by: By = "task"
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)] = MOST_ROWS


class SharedTasks:
    """The tasks of a queue, each table read once for all that ask for it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._kept = {
            "task": Recent(lambda: self._read(by_release=False), rest_s=_REST_S),
            "release": Recent(lambda: self._read(by_release=True), rest_s=_REST_S),
        }

    async def get(self, by: By) -> TaskPage:
        """Returns a table, as the queue had it at most some seconds ago."""
        return await self._kept[by].get()

    def forget(self) -> None:
        """Lets the next caller read anew, because dead sub-requests were requeued or dropped."""
        for one in self._kept.values():
            one.forget()

    async def _read(self, *, by_release: bool) -> TaskPage:
        found = await self._site.snapshots.get()
        return await self._site.queue.driver.run(task_page(found, by_release=by_release))


async def tasks(site: Site, call: Call) -> Response:
    """Lists the tasks of the queue, up to 200, those first that need a person.

    The answer may be some seconds old.
    """
    wanted = query(call, TasksQuery)
    found = await site.tasks.get(wanted.by)
    left_out = len(found.tasks[wanted.limit :])
    return answer(replace(found, tasks=found.tasks[: wanted.limit], more=found.more + left_out))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/tasks", handle=tasks, group="Queue", scopes=("view",),
        summary="List the tasks", query=TasksQuery, gives=TaskPage, refuses=(422,),
    ),
)  # fmt: skip
