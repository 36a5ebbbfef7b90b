"""/v1/requests/{id}/leases: who holds the permits of a request, and what was settled last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.web.endpoint.reading import query
from fairlane.web.endpoint.route import Endpoint, answer
from fairlane.web.operate.pages import After
from fairlane.web.v1.own import own_request
from fairlane.web.v1.requests import READ

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.endpoint.site import Site


class Held(msgspec.Struct):
    """A permit that a worker holds; `owed` of its sub-requests are not settled."""

    permit: int
    worker: str
    since_ms: int
    until_ms: int
    owed: int


class Settled(msgspec.Struct):
    """What a worker settled in one call. `waited` and `ran` are counts by time: [ms, count]."""

    log_id: str
    worker: str
    began_ms: int
    settled_ms: int
    done: int
    dead: int
    waited: list[tuple[float, int]]
    ran: list[tuple[float, int]]


class Leases(msgspec.Struct):
    """The leases of a request. `is_whole`: no settled lease before these is left out."""

    held: list[Held]
    settled: list[Settled]
    is_whole: bool
    now_ms: int


async def leases(site: Site, call: Call) -> Response:
    """Returns who holds the permits of a request, and its last settled leases, oldest first.

    `after` is the log_id of a settled lease: only later ones are returned. Times of a bucket, at
    most 25 % wide, count as its smallest.
    """
    after = query(call, After).after
    request, _ = await own_request(site, call)
    found = await request.leases(after)
    settled = [
        Settled(
            one.log_id, one.worker, one.began_ms, one.settled_ms, one.done, one.dead,
            _pairs(one.waited), _pairs(one.ran),
        )
        for one in found.settled
    ]  # fmt: skip
    held = [Held(*one) for one in found.held]
    return answer(Leases(held, settled, found.is_whole, found.now_ms))


def _pairs(counts: Mapping[float, int]) -> list[tuple[float, int]]:
    return list(counts.items())


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/requests/{id}/leases", handle=leases, group="Requests",
        scopes=READ, summary="Show who holds and held the permits of a request", query=After,
        gives=Leases, refuses=(404, 422),
    ),
)  # fmt: skip
