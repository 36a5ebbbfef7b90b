"""/v1/queue, /v1/queues and /v1/workers: what is in a queue, who works, and its pause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.operations.pause import check_period
from fairlane.operations.queues import list_queues
from fairlane.records import QueueBacklog, QueuePage, WorkerPage
from fairlane.web.answers import answer
from fairlane.web.counts import LOOK
from fairlane.web.route import After, Endpoint, Limit, document, query
from fairlane.web.trail import trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


_MOST_KEYS = 100_000  # keys that a page of queues looks at


class QueueState(msgspec.Struct):
    """A queue now: its `backlog` is how much waits. `requests` have not ended, `workers` are alive.

    `lanes` is priority -> tokens. `delayed` tokens are due later; `ended` is how many endings the
    completion log keeps. The bound `max_waiting` and `admitted`, which counts for it, are null
    without a bound. `paused_until_ms` null: it is not paused, or until it is resumed. Of more than
    1,000 workers, those with the newest beats are counted. The answer may be a second old; a
    change by this server is always in it.
    """

    queue: str
    backlog: QueueBacklog
    requests: int
    workers: int
    lanes: dict[int, int]
    delayed: int
    ended: int
    max_waiting: int | None
    admitted: int | None
    rate: str | None
    shards: list[int]
    is_paused: bool
    paused_until_ms: int | None


class QueuePaused(msgspec.Struct):
    """Whether a queue is paused; `was_paused` is true if it was before the call."""

    queue: str
    is_paused: bool
    paused_until_ms: int | None = None
    was_paused: bool | None = None


class PauseFor(msgspec.Struct, forbid_unknown_fields=True):
    """How long to pause, in seconds; null: until it is resumed."""

    for_s: float | None = None


async def show(site: Site, _: Call) -> Response:
    """Returns the counts of the queue now."""
    found = await site.snapshots.get()
    return answer(
        QueueState(
            queue=found.queue, backlog=found.backlog, requests=found.unfinished,
            workers=found.worker_totals.alive,
            lanes={one.priority: one.tokens for one in found.lanes if one.tokens},
            delayed=found.delayed, ended=found.ended, max_waiting=found.max_waiting,
            admitted=found.admitted, rate=found.rate, shards=list(found.shards),
            is_paused=found.is_paused, paused_until_ms=found.paused_until_ms,
        )
    )  # fmt: skip


async def pause(site: Site, call: Call) -> Response:
    """Pauses the queue: workers finish what they hold and take nothing; submissions go on."""
    given = await document(call, PauseFor)
    check_period(given.for_s)
    await trail_of(call).note(object_id=site.queue.name, given=f"for_s={given.for_s}")
    found = await site.queue.pause(for_s=given.for_s)
    site.snapshots.forget()
    return answer(QueuePaused(site.queue.name, found.is_paused, found.until_ms))


async def resume(site: Site, call: Call) -> Response:
    """Ends the pause of the queue; fine if it is not paused."""
    await trail_of(call).note(object_id=site.queue.name)
    was_paused = await site.queue.resume()
    site.snapshots.forget()
    return answer(QueuePaused(site.queue.name, is_paused=False, was_paused=was_paused))


async def queues(site: Site, call: Call) -> Response:
    """Lists all queues on the server's Redis with their counts, a page at a time.

    A page looks at about 100,000 keys. So it may have no queue, and yet another one may follow.
    """
    wanted = query(call, After)
    page = await site.queue.driver.run(list_queues(wanted.after, _MOST_KEYS))
    return answer(page)


async def workers(site: Site, call: Call) -> Response:
    """Lists the workers of the queue, and what they hold."""
    return answer(await site.queue.workers(query(call, Limit).limit))


_GROUP = "Queue"
ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/queue", handle=show, group=_GROUP, scopes=LOOK,
        summary="Show the queue", gives=QueueState,
    ),
    Endpoint(
        method="POST", path="/v1/queue/pause", handle=pause, group=_GROUP, scopes=("operate",),
        summary="Pause the queue", takes=PauseFor, gives=QueuePaused, refuses=(422,), changes=True,
    ),
    Endpoint(
        method="POST", path="/v1/queue/resume", handle=resume, group=_GROUP, scopes=("operate",),
        summary="Resume the queue", gives=QueuePaused, changes=True,
    ),
    Endpoint(
        method="GET", path="/v1/queues", handle=queues, group=_GROUP, scopes=LOOK,
        summary="List all queues", query=After, gives=QueuePage, refuses=(422,),
    ),
    Endpoint(
        method="GET", path="/v1/workers", handle=workers, group=_GROUP, scopes=LOOK,
        summary="List the workers", query=Limit, gives=WorkerPage, refuses=(422,),
    ),
)  # fmt: skip
