"""Writes each change of an endpoint to the audit trail, with its outcome."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from fairlane.errors import FairlaneError, RedisFull
from fairlane.operations.http.audit_trail import AuditEntry, begin, end
from fairlane.web.endpoint.problem import Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from fairlane.web.endpoint.site import Site

GONE = 499  # the caller closed the connection; nothing reads this
_log = logging.getLogger(__name__)


class Trail:
    """The entry of one call; the handler adds what is changed, if the path does not name it."""

    def __init__(self, who: str, action: str, object_id: str) -> None:
        self.entry = AuditEntry(who, action, object_id)

    def note(self, *, object_id: str | None = None, given: str | None = None) -> None:
        """Adds the object, or the values that the caller gave."""
        entry = self.entry
        self.entry = replace(
            entry,
            object=entry.object if object_id is None else object_id,
            given=entry.given if given is None else given,
        )


@contextlib.asynccontextmanager
async def recorded(site: Site, request: Request, action: str, status: int) -> AsyncIterator[None]:
    """Records the change that the block makes, and the status that its caller gets.

    The entry is written first. Raises an error of Redis if that fails: then nothing is changed. If
    Redis is full, the change may be what makes room, so the server's log gets the entry instead.
    """
    path = "/".join(map(str, request.path_params.values()))
    trail = Trail(request.state.caller.name, action, path)
    request.state.trail = trail
    run, queue = site.queue.driver.run, site.queue.name
    gone: ClientDisconnect | None = None
    try:
        began = await run(begin(queue, trail.entry))
    except RedisFull:
        began = ""
    try:
        yield
        outcome = Refusal(status, "")
    except ClientDisconnect as error:
        gone, outcome = error, Refusal(GONE, "the caller closed the connection")
    except Exception as error:  # noqa: BLE001  each error is one outcome
        outcome = refusal_of(error)
    ended = replace(trail.entry, status=outcome.status, detail=outcome.detail)
    try:
        await run(end(queue, began, ended))
    except FairlaneError as error:  # an entry without an outcome stays
        _log.warning("%r is not in the audit trail: %s", ended, error)
    if gone:
        raise gone
    if outcome.detail:
        raise outcome


def trail_of(request: Request) -> Trail:
    """Returns the entry of a call whose endpoint changes something."""
    trail: Trail = request.state.trail
    return trail
