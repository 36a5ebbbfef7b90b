"""Stacks of the calls of a request or a worker, and the end of one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from fairlane.records import KilledCall, WorkerCalls
from fairlane.web.answers import answer
from fairlane.web.counts import LOOK
from fairlane.web.route import Endpoint, caller_of, document, own_request
from fairlane.web.trail import trail_of

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


class RequestStacks(msgspec.Struct):
    """The calls of a request that run now, by worker."""

    workers: list[WorkerCalls]


class Kill(msgspec.Struct, forbid_unknown_fields=True):
    """The call to end. `verdict`: charge an attempt, free: run it again uncharged, or dead.

    `others`: other calls of its process may end with it; they run again uncharged.
    """

    index: Annotated[int, msgspec.Meta(ge=0)]
    verdict: Literal["charge", "free", "dead"] = "charge"
    others: bool = False


async def of_request(site: Site, call: Call) -> Response:
    """Returns each call of a request that runs now, with its stack. No call is ended.

    A worker answers within about 3 s. One that does not answer has its `problem`.
    """
    request, _ = await own_request(site, call)
    return answer(RequestStacks(await request.stacks()))


async def of_worker(site: Site, call: Call) -> Response:
    """Returns each call that a worker runs now, with its stack. No call is ended."""
    return answer(await site.queue.stacks(call.path_params["worker"]))


async def kill(site: Site, call: Call) -> Response:
    """Ends one call that runs now, and its process if it must.

    If other calls run in its process, `others` must be true. A call that has ended meanwhile, that
    waits, or whose worker is gone is refused.
    """
    given = await document(call, Kill)
    words = f"index={given.index} verdict={given.verdict}"
    await trail_of(call).note(given=words)
    request, _ = await own_request(site, call)
    killed = await request.kill(
        given.index, given.verdict, others=given.others, by=caller_of(call).name
    )
    await trail_of(call).note(given=f"{words} worker={killed.worker}")
    return answer(killed)


_ONE = "/v1/requests/{id}"
ENDPOINTS = (
    Endpoint(
        method="POST", path=f"{_ONE}/stacks", handle=of_request, group="Requests",
        scopes=LOOK, summary="Show what the calls of a request do now", gives=RequestStacks,
        refuses=(404,), changes=True,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/kill", handle=kill, group="Requests", scopes=("operate",),
        summary="End one call of a request", takes=Kill, gives=KilledCall,
        refuses=(404, 409, 422), changes=True,
    ),
    Endpoint(
        method="POST", path="/v1/workers/{worker}/stacks", handle=of_worker, group="Queue",
        scopes=LOOK, summary="Show what the calls of a worker do now", gives=WorkerCalls,
        refuses=(404, 422), changes=True,
    ),
)  # fmt: skip
