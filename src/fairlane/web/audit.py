"""/v1/me and /v1/audit: who calls, and who has changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlane.operations.audit_trail import read_trail
from fairlane.web.answers import answer
from fairlane.web.counts import LOOK
from fairlane.web.route import Endpoint, Paging, caller_of, query

if TYPE_CHECKING:
    from starlette.requests import Request as Call
    from starlette.responses import Response

    from fairlane.web.app import Site


class Me(msgspec.Struct):
    """The caller: the name of its token, and what it may do; `queue` is what the server serves.

    `keys` are the keys of limits that it may name and set: names, and beginnings with a * behind
    them. If there is none, it may all with the scope operate, else none.
    """

    name: str
    scopes: tuple[str, ...]
    keys: tuple[str, ...]
    queue: str
    version: str
    has_tokens: bool


class AuditRow(msgspec.Struct):
    """What a caller did: `action` is the method and the path of its endpoint.

    `who` is the name of its token, `token` the token's id, and `address` where the call came from.
    `status` is the HTTP status of the answer; null = the change goes on, or its server died before
    the end. `detail` says why it was refused, `given` what the caller gave, and `ids` the ids or
    indexes that a change of many named. `count` equal calls are one entry: of takes, how many
    sub-requests.
    """

    id: str
    at_ms: int
    who: str
    token: str
    address: str
    action: str
    object: str
    given: str
    ids: list[str]
    count: int
    status: int | None
    detail: str


class AuditPage(msgspec.Struct):
    """Changes, newest first; `after` continues behind this page, null at the end."""

    entries: list[AuditRow]
    after: str | None


async def me(site: Site, call: Call) -> Response:
    """Returns the name of the caller's token, and its scopes with those that they include."""
    from fairlane import __version__

    caller = caller_of(call)
    has_tokens = site.has_tokens
    return answer(
        Me(caller.name, caller.scopes, caller.keys, site.queue.name, __version__, has_tokens)
    )


async def audit(site: Site, call: Call) -> Response:
    """Returns what callers changed, newest first, who took and signed in, and who was refused.

    Settled work is not listed, and of submissions only those that replace a request of another
    token or cancel one.
    """
    wanted = query(call, Paging)
    rows, after = await site.queue.driver.run(
        read_trail(site.queue.name, wanted.limit, wanted.after)
    )
    found = [
        AuditRow(
            entry_id, int(entry_id.partition("-")[0]), one.who, one.token, one.address, one.action,
            one.object, one.given, one.ids.split(), max(1, one.count), one.status or None,
            one.detail,
        )
        for entry_id, one in rows
    ]  # fmt: skip
    return answer(AuditPage(found, after or None))


ENDPOINTS = (
    Endpoint(
        method="GET", path="/v1/me", handle=me, group="Access", summary="Show who calls",
        scopes=(*LOOK, "submit", "consume"), gives=Me,
    ),
    Endpoint(
        method="GET", path="/v1/audit", handle=audit, group="Access", scopes=("operate",),
        summary="List what callers changed", query=Paging, gives=AuditPage, refuses=(422,),
    ),
)  # fmt: skip
