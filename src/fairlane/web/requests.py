"""/v1/requests: submits, lists, shows and changes requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from fairlane.common.chunking import chunks_async
from fairlane.errors import RedisUnreachable, RequestNotFound
from fairlane.operations.audit_trail import begin
from fairlane.operations.call_words import with_calls
from fairlane.operations.change import Change, set_one
from fairlane.operations.schedules import is_of_tick
from fairlane.operations.submit import submit
from fairlane.options import id_for, named_keys, policy_of
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, run_all
from fairlane.records import Progress, RecentLeases, RequestPage, WhyWaiting
from fairlane.tracing import sending
from fairlane.web.answers import (
    EVENTS,
    NDJSON,
    Refusal,
    answer,
    counted_as,
    event_stream,
    refusal_of,
)
from fairlane.web.route import (
    MOST,
    UPLOAD,
    UPLOAD_HELD,
    Endpoint,
    caller_of,
    document,
    file_parts,
    lines,
    media_of,
    own_request,
    parts,
    query,
)
from fairlane.web.schemas import (
    Cancel,
    Changes,
    Delete,
    Filters,
    Options,
    RequestToSubmit,
    SubmittedRequest,
    shown,
    to_bytes,
)
from fairlane.web.trail import Trail, entry_of, trail_of
from fairlane.web.why import why_shown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request as Call

    from fairlane.aio.request import Request
    from fairlane.common.chunking import Bodies
    from fairlane.operations.create import FormerRequest
    from fairlane.web.app import Site, Watched


# ------------------------------------------------------------------ submission
# Submits for a caller of the API, whose right ends at what its own token has submitted.


_ACTION = "POST /v1/requests"


async def submit_for(site: Site, call: Call, bodies: Bodies, **options: Any) -> tuple[str, int]:
    """Submits a request, which keeps the id of the caller's token; returns its id and its size.

    A request of the same id that another token has submitted is replaced only for a caller with
    the scope operate. The audit trail has an entry of what is replaced. Raises Refusal, and the
    errors of Queue.submit_request.
    """
    queue, caller = site.queue.name, caller_of(call)
    given = options.pop("id", None)
    with sending(queue) as span:
        policy = policy_of(queue, trace=span.trace, by=caller.id, **options)
        caller.check_keys(named_keys(policy.limits, policy.order_key))
        name = keys.check_name("request id", id_for(policy, given))
        if is_of_tick(name) and "operate" not in caller.scopes:
            raise Refusal(403, f"id {name} is one of a schedule's ticks: choose another id")
        replacing = _Replacing(site, call, policy.on_duplicate)
        await site.queue.driver.run(_check_own(queue, policy.after))
        async with replacing:
            try:
                total = await site.queue.driver.run(
                    submit(name, policy, guard=replacing.guard), chunks_async(bodies)
                )
            except RedisUnreachable as error:  # what this leaves open goes when Redis answers again
                if error.take_back is not None:
                    site.withdraw(error.take_back)
                raise
        span.note_sent(name, total)
    return name, total


class _Replacing:
    """Judges if the caller may replace another request, and records that in the audit trail."""

    def __init__(self, site: Site, call: Call, how: str) -> None:
        self._queue, self._caller = site.queue.name, caller_of(call)
        self._trail = Trail(site.queue, entry_of(call, _ACTION))
        self._how = how

    async def guard(self, other: FormerRequest) -> None:
        """Raises Refusal unless the caller may replace or continue this request."""
        if other.by != self._caller.id and "operate" not in self._caller.scopes:
            whose = "by another token" if other.by else "without a token"
            what = "continued" if other.is_same else "replaced"
            raise Refusal(
                403,
                f"request {other.id} was submitted {whose}: it is {what} for a token with the "
                "scope operate, so choose another id",
            )
        trail = self._trail
        if not other.is_same and not trail.began:  # it is asked again for the end of a cancel
            given = f"on_duplicate={self._how} replaces the request that began at {other.born} ms"
            trail.entry = replace(trail.entry, object=other.id, given=given)
            trail.began = await begin(self._queue, trail.entry)

    async def __aenter__(self) -> None:
        """Begins the submission."""

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Writes what came of it, if another request was replaced."""
        if self._trail.began:
            outcome = refusal_of(error) if isinstance(error, Exception) else Refusal(201, "")
            await self._trail.end(outcome.status, outcome.detail)


async def _check_own(queue: str, names: Sequence[str]) -> None:
    """Raises RequestNotFound for requests of another queue: the server has no others."""
    if not names:
        return
    homes = await run_all([Command(b"HGET", keys.request_hash(n), b"queue") for n in names])
    for name, home in zip(names, homes, strict=True):
        if home != queue.encode():
            raise RequestNotFound(
                f"there is no request {name} in queue {queue}: a request starts only after those "
                "of its own queue"
            )


READ = ("submit", "view")


async def submit_one(site: Site, call: Call) -> Response:
    """Submits a request: bodies in a JSON document, or each line of NDJSON or of a form's file.

    The lines are submitted while they come. If the caller breaks off, the request is withdrawn.
    """
    if media_of(call) in {NDJSON, UPLOAD}:
        options = query(call, Options).given()
        source = lines(file_parts(call) if media_of(call) == UPLOAD else parts(call))
        site.check_room(counted_as(call))
        if refusal := site.hold(call, UPLOAD_HELD):
            raise refusal
        with site.long_call(counted_as(call)):
            made = await submit_for(site, call, source, **options)
    else:
        given = await document(call, RequestToSubmit, MOST, others=(NDJSON, UPLOAD))
        made = await submit_for(site, call, map(to_bytes, given.bodies), **given.given())
    return answer(SubmittedRequest(*made), 201)


async def list_requests(site: Site, call: Call) -> Response:
    """Lists requests, the most urgent first, then the newest endings, a page at a time."""
    wanted = query(call, Filters)
    page = await site.queue.list_requests(
        limit=wanted.limit, after=wanted.after, sort=wanted.sort, **wanted.given()
    )
    return answer(page)


async def show(site: Site, call: Call) -> Response:
    """Returns the counts and the settings of a request now."""
    _, progress = await own_request(site, call)
    (progress,) = await site.queue.driver.run(with_calls([progress]))
    return answer(shown(progress, shows_by="operate" in caller_of(call).scopes))


async def cancel(site: Site, call: Call) -> Response:
    """Cancels a request: nothing of it starts any more."""
    given = await document(call, Cancel)
    await trail_of(call).note(given=given.reason)
    request, _ = await own_request(site, call)
    await request.cancel(given.reason)
    return answer(await request.progress())


async def pause(site: Site, call: Call) -> Response:
    """Pauses a request until it is resumed."""
    request, _ = await own_request(site, call)
    await request.pause()
    return answer(await request.progress())


async def resume(site: Site, call: Call) -> Response:
    """Resumes a paused request."""
    request, _ = await own_request(site, call)
    await request.resume()
    return answer(await request.progress())


async def change(site: Site, call: Call) -> Response:
    """Sets the limit, priority, deadline, time limit, rate, weight or share: all or none.

    A request that has ended, or whose end is near, refuses.
    """
    given = await document(call, Changes)
    wanted = given.given()
    await trail_of(call).note(given=" ".join(f"{name}={value}" for name, value in wanted.items()))
    changing = Change.set(**wanted)
    request, _ = await own_request(site, call)
    await site.queue.driver.run(set_one(request.id, changing))
    return answer(await request.progress())


async def delete(site: Site, call: Call) -> Response:
    """Deletes a request that has ended, with its results; ?cancel=true cancels it first."""
    wanted = Change.delete(cancel=query(call, Delete).cancel)
    await trail_of(call).note(given="cancel=true" if wanted.cancels else "")
    request, _ = await own_request(site, call)
    report = await site.queue.change(await site.queue.select(wanted, [request.id]))
    site.failures.forget()
    for error in report.failed.values():
        raise error
    return Response(status_code=204)


_ONE = "/v1/requests/{id}"
_GROUP = "Requests"
ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/requests", handle=submit_one, group=_GROUP, scopes=("submit",),
        summary="Submit a request", takes=RequestToSubmit, query=Options,
        gives=SubmittedRequest, status=201,
        accepts=(NDJSON, UPLOAD), refuses=(404, 409),
    ),
    Endpoint(
        method="GET", path="/v1/requests", handle=list_requests, group=_GROUP, scopes=("view",),
        summary="List requests", query=Filters, gives=RequestPage, refuses=(422,),
    ),
    Endpoint(
        method="GET", path=_ONE, handle=show, group=_GROUP, scopes=READ,
        summary="Show a request", gives=Progress, refuses=(404,),
    ),
    Endpoint(
        method="PATCH", path=_ONE, handle=change, group=_GROUP, scopes=("operate",),
        summary="Change the settings of a request", takes=Changes,
        gives=Progress, refuses=(404, 409), changes=True,
    ),
    Endpoint(
        method="DELETE", path=_ONE, handle=delete, group=_GROUP, scopes=("operate",),
        summary="Delete a request", query=Delete, status=204, refuses=(404, 409, 422),
        changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/cancel", handle=cancel, group=_GROUP, scopes=("operate",),
        summary="Cancel a request", takes=Cancel, gives=Progress, refuses=(404,),
        changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/pause", handle=pause, group=_GROUP, scopes=("operate",),
        summary="Pause a request", gives=Progress, refuses=(404, 409), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/resume", handle=resume, group=_GROUP, scopes=("operate",),
        summary="Resume a request", gives=Progress, refuses=(404, 409), changes=True,
    ),
)  # fmt: skip


# ------------------------------------------------------------------ leases
# /v1/requests/{id}/leases: who holds the permits of a request, and what was settled last.


class LaterLeases(msgspec.Struct, forbid_unknown_fields=True):
    """The `log_id` of a settled lease: only later ones are returned; "" = all that are read."""

    after: str = ""


async def leases(site: Site, call: Call) -> Response:
    """Returns who holds the permits of a request, and its last settled leases, oldest first.

    `after` is the log_id of a settled lease: only later ones are returned. Times of a bucket, at
    most 25 % wide, count as its smallest.
    """
    after = query(call, LaterLeases).after
    request, _ = await own_request(site, call)
    return answer(await request.leases(after))


LEASE_ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/requests/{id}/leases", handle=leases, group="Requests",
        scopes=READ, summary="Show who holds and held the permits of a request", query=LaterLeases,
        gives=RecentLeases, refuses=(404, 422),
    ),
)  # fmt: skip


# ------------------------------------------------------------------ follow
# /v1/requests/{id}/live: a request while people watch it.


LOOK_S = 1.0  # between two looks at a request that runs
ENDED_S = 15.0  # the same of one that has ended: only its dead sub-requests may change


class RequestLive(msgspec.Struct):
    """A request that has changed, and what holds it up; `why` is null once it has ended."""

    request: Progress
    why: WhyWaiting | None
    now_ms: int


async def follow(site: Site, call: Call) -> Response:
    """Sends a request now and whenever it has changed, without an end.

    What holds it up is read again when its settings change, and every 5 s until it ends. Any number
    of viewers costs one look a second.
    """
    request, _ = await own_request(site, call)
    changes = _changes(site, request, shows_by="operate" in caller_of(call).scopes)
    return event_stream(site, call, changes, "request", lambda one: one.now_ms)


async def _changes(
    site: Site, request: Request, *, shows_by: bool
) -> AsyncGenerator[RequestLive, None]:
    before: tuple[Progress, int] | None = None
    with site.watching(request) as watched:
        while True:
            progress = await watched.progress.get()
            found, now_ms = await _why_of(watched, progress)
            if before != (progress, now_ms):
                before = progress, now_ms
                yield RequestLive(shown(progress, shows_by=shows_by), found, now_ms)
            await asyncio.sleep(ENDED_S if progress.ended else LOOK_S)


async def _why_of(watched: Watched, progress: Progress) -> tuple[WhyWaiting | None, int]:
    """Returns what holds up the request, and when that was read, in ms."""
    if progress.ended:
        return None, progress.ended_ms or 0
    watched.note(progress)
    found = await watched.why.get()
    return why_shown(found), found.now_ms


_ONE_WATCHED = "/v1/requests/{id}/live"
WATCH_ENDPOINTS = (
    Endpoint(
        method="GET", path=_ONE_WATCHED, handle=follow, group="Live", scopes=("view",),
        summary="Watch a request", gives=RequestLive, streams=(EVENTS,), refuses=(404,),
    ),
)  # fmt: skip
