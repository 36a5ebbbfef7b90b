"""The trail of what callers of the HTTP API did: bounded streams beside the queue.

Each token has a part for its changes, one for its takes, and one for its sign-ins and refusals. So
no caller displaces the entries of another one, and none its own changes by calls that change
nothing. Callers without a token share their parts, and changes of the tokens have one.

An entry without an outcome is written before a change, so no change is without an entry. When more
of it or its outcome is known, another entry replaces the first one. If a server dies in between,
the first one stays. A repeated call may leave an entry twice.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.operations.find import MOST_LISTED, check_page, invalid_cursor
from fairlane.protocol import keys
from fairlane.protocol.request_hash import as_text
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Mapping


CHANGES, TAKES, ACCESS, TOKENS = "", "takes", "access", "tokens"  # kinds of entries
MOST_PARTS = 500
_TEXT_MOST = 4_000  # characters of one value
_ENTRIES_LEAST = 50  # of a part, however large they are
_PAGE_BYTES = 4 << 20
_FIRST, _MORE = 10, 4  # entries that are read of a part, and how many times as many the next time
_CURSOR = re.compile(r"(\d{1,20})-(\d{1,20})~([0-9a-z.]{1,20})")
_Place = tuple[int, int, str]  # an entry's ms and number, and its part


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What a caller did: by which token, from which address, which call, of which object.

    `who` is the name of the token and `token` its id. `object` is the id of a request or the name
    of a schedule; `ids` are those of a change of many, with spaces between them. `status` is the
    HTTP status, 0 = it is not known: the change goes on, or its server died. `detail` says why it
    was refused. `count` is how many equal calls the entry is for.
    """

    who: str
    action: str
    object: str = ""
    given: str = ""
    status: int = 0
    detail: str = ""
    token: str = ""
    address: str = ""
    ids: str = ""
    count: int = 0


async def begin(queue: str, entry: AuditEntry, kind: str = CHANGES) -> str:
    """Writes a change that is about to be made, or a call of another kind.

    Returns the id of the entry.
    """
    part = _part_of(entry, kind)
    added, *_, parts = await Batch(
        [*_added(queue, entry, part), Command(b"ZCARD", keys.audit(queue))]
    )
    if parts > MOST_PARTS:
        await _drop_oldest(queue)
    return str(added.decode())


async def rewrite(queue: str, began: str, entry: AuditEntry) -> str:
    """Writes a change in place of the entry with the id `began`, "" = there is none.

    Returns the id of the new entry.
    """
    part = _part_of(entry, CHANGES)
    gone = [Command(b"XDEL", keys.audit_part(queue, part), began)] if began else []
    added, *_ = await Batch([*_added(queue, entry, part), *gone])
    return str(added.decode())


async def read_trail(
    queue: str, limit: int = 100, after: str = ""
) -> tuple[list[tuple[str, AuditEntry]], str]:
    """Returns entries with their ids, newest first, and where the next page continues.

    That is "" at the end. A page has up to `limit` entries, 1 to 1,000, and about 4 MiB of them.
    Raises InvalidArgument.
    """
    check_page(limit)
    last: _Place | None = None
    if after:
        match = _CURSOR.fullmatch(after)
        if match is None or max(int(match[1]), int(match[2])) >= 2**64:
            raise invalid_cursor(after)
        last = (int(match[1]), int(match[2]), match[3])
    parts = [name.decode() for name in await Command(b"ZRANGE", keys.audit(queue), 0, -1)]
    if not parts:
        return [], ""
    rows = {part: _Rows(part, last) for part in parts}
    found, size = list[tuple[str, AuditEntry]](), 0
    while len(found) < limit and size <= _PAGE_BYTES:
        empty = [one for one in rows.values() if not one.found and not one.is_over]
        if empty:
            pages = await Batch([one.read(queue) for one in empty])
            for one, page in zip(empty, pages, strict=True):
                one.add(page)
        heads = [one for one in rows.values() if one.found]
        if not heads:
            break
        newest = max(heads, key=lambda one: one.found[0][0])
        (ms, seq, part), row = newest.found.popleft()
        found.append((f"{ms}-{seq}~{part}", _entry(row)))
        size += sum(map(len, row.values()))
    has_more = any(one.found or not one.is_over for one in rows.values())
    return found, found[-1][0] if found and has_more else ""


class _Rows:
    """The entries of one part that a page may need, the newest first; large ones are few a read."""

    def __init__(self, part: str, last: _Place | None) -> None:
        self.found: deque[tuple[_Place, dict[str, str]]] = deque()
        self.is_over = False
        self._part, self._last, self._count = part, last, _FIRST

    def read(self, queue: str) -> Command:
        """Reads what is older than the last place. Entries of several parts may have one id."""
        newest = "+"
        if self._last is not None:
            is_behind = self._part < self._last[2]
            newest = f"{'' if is_behind else '('}{self._last[0]}-{self._last[1]}"
        stream = keys.audit_part(queue, self._part)
        return Command(b"XREVRANGE", stream, newest, "-", b"COUNT", self._count)

    def add(self, page: list[tuple[bytes, list[bytes]]]) -> None:
        """Adds what was read."""
        self.is_over = len(page) < self._count
        self.found.extend((_place(name, self._part), as_text(flat)) for name, flat in page)
        if page:
            self._last = self.found[-1][0]
        self._count = min(self._count * _MORE, MOST_LISTED)


async def note_tokens(queue: str, tokens: Mapping[str, str]) -> None:
    """Writes an entry for each token that was created or revoked since the last look.

    `tokens` are those that there are now: id -> its name, its scopes and when it expires. The first
    server that looks writes the entry.
    """
    kept = as_text(await Command(b"HGETALL", keys.audit_tokens(queue)))
    for name, text in tokens.items():
        is_new = name not in kept and (
            await Command(b"HSETNX", keys.audit_tokens(queue), name, text)
        )
        if is_new:
            await begin(queue, _token_entry("token created", name, text), TOKENS)
    for name in kept.keys() - tokens.keys():
        if await Command(b"HDEL", keys.audit_tokens(queue), name):
            await begin(queue, _token_entry("token revoked", name, kept[name]), TOKENS)


def _token_entry(action: str, name: str, text: str) -> AuditEntry:
    return AuditEntry("fairlane token", action, name, text)


async def _drop_oldest(queue: str) -> None:
    """Deletes the part whose last entry is the oldest."""
    popped = await Command(b"ZPOPMIN", keys.audit(queue))
    if popped:
        await Command(b"UNLINK", keys.audit_part(queue, popped[0].decode()))


def _part_of(entry: AuditEntry, kind: str) -> str:
    if entry.token:
        return f"{entry.token}.{kind}" if kind else entry.token
    return kind or "local"


def _added(queue: str, entry: AuditEntry, part: str) -> list[Command]:
    words = [
        word
        for name in _NAMES
        if (value := getattr(entry, name))
        for word in (name, str(value) if name == "ids" else str(value)[:_TEXT_MOST])
    ]
    size = sum(map(len, words))
    most = max(_ENTRIES_LEAST, min(settings.AUDIT_ENTRIES, settings.AUDIT_BYTES // max(1, size)))
    stream = keys.audit_part(queue, part)
    return [
        Command(b"XADD", stream, b"MAXLEN", b"~", most, b"*", *words),
        Command(b"ZADD", keys.audit(queue), _now_ms(), part),
    ]


def _place(entry_id: bytes, part: str) -> _Place:
    ms, _, seq = entry_id.decode().partition("-")
    return int(ms), int(seq), part


def _now_ms() -> int:
    return int(time.time() * 1000)  # only the order of the parts depends on it


def _entry(found: dict[str, str]) -> AuditEntry:
    values: dict[str, Any] = {name: found.get(name, "") for name in _NAMES}
    for name in _NUMBERS:
        values[name] = int(values[name]) if values[name].isdecimal() else 0
    return AuditEntry(**values)


_NAMES = tuple(field.name for field in fields(AuditEntry))
_NUMBERS = ("status", "count")
