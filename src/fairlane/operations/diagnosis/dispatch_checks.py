"""The second half of a walk: finds, page by page, what should not be in the dispatch slot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fairlane.common.text import plural
from fairlane.errors import FairlaneError
from fairlane.model import ENDED_STATES
from fairlane.operations.batching import run_each
from fairlane.operations.diagnosis.finding import BAD, NOTE, Finding, once
from fairlane.operations.diagnosis.request_checks import GRACE_MS, unreadable
from fairlane.operations.lease import turns
from fairlane.operations.lease.shards import read_shards
from fairlane.operations.lease.tokens import drop_active, parse
from fairlane.operations.maintenance.queued_permits import are_queued
from fairlane.operations.maintenance.registry import look_at
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

_PAGE = 1000
_MEMBER = re.compile(rb"(\d{1,2})\|(.+)")


class Dispatch:
    """Checks `active`, `delayed` and the lanes of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._cursor = b"0"
        self._lane = self._first = self._tokens = 0
        self._shards: list[int] | None = None  # shards not checked yet, once they are known
        self._phases = [self._active, self._delayed, self._lanes]

    @property
    def is_over(self) -> bool:
        """Returns True if there is nothing left to check."""
        return not self._phases

    def page(self) -> Operation[list[Finding]]:
        """Checks the next page."""
        found: list[Finding] = []
        is_done = yield from self._phases[0](found)
        if is_done:
            self._phases.pop(0)
        return found

    def _scan(self, key: bytes) -> Operation[tuple[list[Any], int]]:
        """Returns the next page of a sorted set, as flat member and score, and the time in ms."""
        asked = [Command(b"ZSCAN", key, self._cursor, b"COUNT", _PAGE), Command(b"TIME")]
        (cursor, found), (seconds, _) = yield Batch(asked)
        self._cursor = bytes(cursor)
        return found, int(seconds) * 1000

    def _active(self, findings: list[Finding]) -> Operation[bool]:
        """Finds entries that belong to no unfinished request."""
        found, now = yield from self._scan(keys.active(self.queue))
        late = [
            (name, score)
            for name, score in zip(found[::2], found[1::2], strict=True)
            if now - float(score) > GRACE_MS  # otherwise a leader handles it now, or soon
        ]
        ids = [name.decode("utf-8", "replace") for name, _ in late]
        asked = [Command(b"HMGET", keys.request_hash(one), b"state", b"queue") for one in ids]
        rows = yield from run_each(asked)
        for (name, score), request_id, row in zip(late, ids, rows, strict=True):
            if isinstance(row, FairlaneError):
                findings.append(unreadable(request_id, row))
                continue
            what = self._why(row, score)
            if what is None:
                continue
            repair, remedy = self._take_out(name, score.decode(), now), "take it out of `active`"
            findings.append(Finding("no request", BAD, what, remedy, request_id, repair))
        return self._cursor == b"0"

    def _why(self, row: list[bytes | None], score: bytes) -> str | None:
        state, queue = ((value or b"").decode("utf-8", "replace") for value in row)
        if state in {"", "abandoned"}:
            was_seen = float(score) % 1 != 0
            return "was there and is gone" if was_seen else "was announced and never submitted"
        if queue != self.queue:
            return f"is in `active` of {self.queue} and belongs to queue {queue}"
        return "has ended and still is in `active`" if state in ENDED_STATES else None

    def _take_out(self, name: bytes, score: str, now: int) -> Operation[None]:
        try:
            request_id = keys.check_name("request id", name.decode("utf-8", "replace"))
        except FairlaneError:
            yield drop_active(self.queue, name, score)
            return
        yield from look_at(self.queue, request_id, score, now)

    def _delayed(self, findings: list[Finding]) -> Operation[bool]:
        """Finds members that would stop a promoter, because it cannot read them, and stale ones."""
        if self._shards is None:
            self._shards = list((yield from read_shards(self.queue)).served)
        delayed = keys.delayed(self.queue, self._shards[0])
        found, _ = yield from self._scan(delayed)
        tokens = []
        for member in found[::2]:
            match = _MEMBER.fullmatch(member)
            if match:
                tokens.append(match[2])
                continue
            shown = member[:80].decode("utf-8", "replace")
            repair, what = once(Command(b"ZREM", delayed, member)), "in `delayed` is no token"
            findings.append(Finding("unreadable", BAD, what, "remove it", shown, repair))
        yield from self._count(tokens)
        if self._cursor == b"0":
            self._report(findings, "delayed")
        return self._cursor == b"0"

    def _lanes(self, findings: list[Finding]) -> Operation[bool]:
        """Finds tokens of requests that are gone, or of permits that have other tokens now."""
        shards = self._shards or [0]
        lane = keys.lanes(self.queue, shards[0])[self._lane]
        page = yield Command(b"LRANGE", lane, self._first, self._first + _PAGE - 1)
        words = [word for word in page if word != turns.PLACEHOLDER]
        if not self._first:  # of very many that wait for their tenant's turn it checks the first
            number = shards[0] * keys.LANES + self._lane
            members = yield turns.first_of_lane(self.queue, number, _PAGE)
            words += map(turns.token_of, members)
        yield from self._count(words)
        self._first += _PAGE
        if len(page) < _PAGE:
            shown = f"shard {shards[0]}, " if shards[0] else ""
            self._report(findings, f"{shown}lane {self._lane}")
            self._lane, self._first = self._lane + 1, 0
        if self._lane < keys.LANES:
            return False
        self._lane, self._shards = 0, shards[1:]
        if self._shards:
            self._phases[1:1] = [self._delayed, self._lanes]
        return True

    def _count(self, tokens: list[bytes]) -> Operation[None]:
        """Counts the stale tokens."""
        read = [token for token in map(parse, tokens) if token is not None]
        fresh = yield from are_queued(read, run_each)
        self._tokens += len(tokens) - sum(fresh)

    def _report(self, findings: list[Finding], where: str) -> None:
        if self._tokens:
            what = f"{plural(self._tokens, 'token')} that no permit waits for"
            findings.append(Finding("stale", NOTE, what, subject=where))
        self._tokens = 0
