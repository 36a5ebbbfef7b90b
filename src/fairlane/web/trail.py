"""Writes what callers do to the audit trail: each change with its outcome, takes and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from fairlane.common import clock
from fairlane.errors import FairlaneError, InvalidArgument, RedisFull
from fairlane.operations.audit_trail import ACCESS, TAKES, AuditEntry, begin, note_tokens, rewrite
from fairlane.web.access import ANYONE
from fairlane.web.answers import Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request as Call

    from fairlane.aio.queue import Queue
    from fairlane.web.access import Caller, TokenFile
    from fairlane.web.app import Site


GONE = 499  # the caller closed the connection; nothing reads this
REFUSED = {401, 403}  # statuses of calls that are not admitted
LOOK_S = 2.0  # between two looks at the tokens
TALLY_S = 60.0  # equal calls of so long are one entry
_END_S = 5.0  # of a server that stops, for what was counted
_TALLIES_MOST = 1_000  # of one token, and of all callers without one
_log = logging.getLogger(__name__)


class Trail:
    """The entry of one call; the handler adds what is changed, if the path does not name it."""

    def __init__(self, queue: Queue, entry: AuditEntry) -> None:
        self.entry, self.began = entry, ""
        self._queue = queue

    async def begin(self) -> None:
        """Writes the entry, unless Redis is full: the change may be what makes room."""
        with contextlib.suppress(RedisFull):
            self.began = await self._queue.driver.run(begin(self._queue.name, self.entry))

    async def note(
        self, *, object_id: str | None = None, given: str | None = None, ids: str | None = None
    ) -> None:
        """Adds the object, what the caller gave, or the ids of many: to be called before a change.

        Raises an error of Redis if that is not written.
        """
        entry = self.entry
        self.entry = replace(
            entry,
            object=entry.object if object_id is None else object_id,
            given=entry.given if given is None else given,
            ids=entry.ids if ids is None else ids,
        )
        if self.began:
            with contextlib.suppress(RedisFull):
                await self._rewrite()

    async def end(self, status: int, detail: str) -> None:
        """Adds the outcome. If Redis refuses, an entry without it stays, and the log has it."""
        self.entry = replace(self.entry, status=status, detail=detail)
        try:
            await self._rewrite()
        except FairlaneError as error:
            _log.warning("%r is not in the audit trail: %s", self.entry, error)

    async def _rewrite(self) -> None:
        writing = rewrite(self._queue.name, self.began, self.entry)
        self.began = await self._queue.driver.run(writing)


def entry_of(request: Call, action: str, object_id: str = "") -> AuditEntry:
    """Returns the entry of a call without an outcome."""
    caller: Caller = getattr(request.state, "caller", ANYONE)
    address = getattr(request.state, "address", "")
    return AuditEntry(caller.name, action, object_id, token=caller.id, address=address)


@contextlib.asynccontextmanager
async def recorded(site: Site, request: Call, action: str, status: int) -> AsyncIterator[None]:
    """Records the change that the block makes, and the status that its caller gets.

    The entry is written first. Raises an error of Redis if that fails: then nothing is changed. If
    Redis is full, the change may be what makes room, so the server's log gets the entry instead.
    """
    path = "/".join(map(str, request.path_params.values()))
    trail = Trail(site.queue, entry_of(request, action, path))
    request.state.trail = trail
    gone: ClientDisconnect | None = None
    await trail.begin()
    try:
        yield
        outcome = Refusal(status, "")
    except ClientDisconnect as error:
        gone, outcome = error, Refusal(GONE, "the caller closed the connection")
    except asyncio.CancelledError:
        await trail.end(503, "the server stopped: the change may be made, or a part of it")
        raise
    except Exception as error:  # noqa: BLE001  each error is one outcome
        outcome = refusal_of(error)
    await trail.end(outcome.status, outcome.detail)
    if gone:
        raise gone
    if outcome.detail:
        raise outcome


def trail_of(request: Call) -> Trail:
    """Returns the entry of a call whose endpoint changes something."""
    trail: Trail = request.state.trail
    return trail


class Tally:
    """Records calls that are too many for an entry each: the first one, then those of a minute.

    A failure of Redis is logged, because the call is made already.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._open: dict[tuple[AuditEntry, str], tuple[float, int]] = {}

    async def took(self, request: Call, action: str, count: int) -> None:
        """Notes that a caller took sub-requests."""
        if count:
            entry = entry_of(request, action)
            await self._note(replace(entry, status=200), TAKES, count)

    async def signed(self, request: Call, action: str) -> None:
        """Notes that a person signed in or out; the caller is that of the token."""
        await self._note(replace(entry_of(request, action), status=204), ACCESS, 1)

    async def refused(self, request: Call, action: str, refusal: Refusal) -> None:
        """Notes that a call was not admitted."""
        entry = replace(entry_of(request, action), status=refusal.status, detail=refusal.detail)
        await self._note(entry, ACCESS, 1)

    async def _note(self, entry: AuditEntry, kind: str, count: int) -> None:
        now_s = clock.mono_s()
        key = (entry, kind)
        until_s, more = self._open.get(key, (0.0, 0))
        if now_s < until_s:
            self._open[key] = (until_s, more + count)
            return
        if key not in self._open and self._is_full(entry.token):
            await self.flush(now_s)
            if self._is_full(entry.token):  # calls from too many addresses
                return
        self._open[key] = (now_s + TALLY_S, 0)
        await self._write(entry, kind, more + count)

    def _is_full(self, token: str) -> bool:
        """Returns True if no more calls of this token are counted; "" = of callers without one."""
        if len(self._open) < _TALLIES_MOST:
            return False
        return sum(entry.token == token for entry, _ in self._open) >= _TALLIES_MOST

    async def flush(self, now_s: float | None = None) -> None:
        """Writes what was counted; with a time only that of minutes that are over."""
        over = {
            key: more
            for key, (until_s, more) in self._open.items()
            if now_s is None or now_s >= until_s
        }
        for key in over:
            del self._open[key]
        await asyncio.gather(*(self._write(*key, more) for key, more in over.items() if more))

    async def _write(self, entry: AuditEntry, kind: str, count: int) -> None:
        entry = replace(entry, count=count)
        try:
            await self._queue.driver.run(begin(self._queue.name, entry, kind))
        except FairlaneError as error:
            _log.warning("%r is not in the audit trail: %s", entry, error)


async def keep_trail(site: Site) -> None:
    """Records changes of the tokens, and what was counted, until it is cancelled."""
    seen: dict[str, str] | None = None
    try:
        while True:
            found = None if site.tokens is None else _texts(site.tokens)
            with contextlib.suppress(FairlaneError):
                if found is not None and found != seen:
                    await site.queue.driver.run(note_tokens(site.queue.name, found))
                    seen = found
            await site.tally.flush(clock.mono_s())
            await asyncio.sleep(LOOK_S)
    finally:
        try:
            async with asyncio.timeout(_END_S):
                await site.tally.flush()
        except TimeoutError:
            _log.warning("calls of the last minute are not in the audit trail: no answer of Redis")


def _texts(tokens: TokenFile) -> dict[str, str] | None:
    """Returns what each token is; None if the file cannot be read."""
    try:
        found = tokens.all()
    except (InvalidArgument, OSError):
        return None
    return {
        one.id: f"name={one.name} scopes={','.join(one.scopes)} expires={one.expires or 'never'}"
        for one in found
    }
