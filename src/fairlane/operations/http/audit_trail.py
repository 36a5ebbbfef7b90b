"""The trail of what callers of the HTTP API did: bounded streams beside the queue.

Each token has a part of its own, and so have takes, sign-ins with refusals, and changes of tokens.
So no caller displaces the entries of another one, however many entries it makes.

An entry without an outcome is written before a change, so no change is without an entry. When its
outcome is known, an entry with it replaces the first one. If a server dies in between, the first
one stays. A repeated call may leave an entry twice.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.operations.find.cursor import invalid_cursor
from fairlane.operations.find.requests import check_page
from fairlane.protocol import keys
from fairlane.protocol.request_hash import as_text
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlane.protocol.steps import Operation

TAKES, ACCESS, TOKENS = "takes", "access", "tokens"  # parts that belong to no token
MOST_PARTS = 200
_TEXT_MOST = 4_000  # characters of one value
_ENTRIES_LEAST = 50  # of a part, however large they are
_PAGE_BYTES = 4 << 20
_CURSOR = re.compile(r"(\d{1,20})-(\d{1,20})~([0-9a-z]{1,20})")


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


def begin(queue: str, entry: AuditEntry, part: str = "") -> Operation[str]:
    """Writes a change that is about to be made; returns the id of the entry.

    `part` is that of the caller's token, unless it is named.
    """
    added, *_, parts = yield Batch(
        [*_added(queue, entry, part), Command(b"ZCARD", keys.audit(queue))]
    )
    if parts > MOST_PARTS:
        yield from _drop_oldest(queue)
    return str(added.decode())


def end(queue: str, began: str, entry: AuditEntry) -> Operation[None]:
    """Writes the outcome in place of the entry that `begin` returned; "" = there is none."""
    part = keys.audit_part(queue, _part_of(entry))
    gone = [Command(b"XDEL", part, began)] if began else []
    yield Batch([*_added(queue, entry, ""), *gone])


def read_trail(
    queue: str, limit: int = 100, after: str = ""
) -> Operation[tuple[list[tuple[str, AuditEntry]], str]]:
    """Returns entries with their ids, newest first, and where the next page continues.

    That is "" at the end. A page has up to `limit` entries, 1 to 1,000, and about 4 MiB of them.
    Raises InvalidArgument.
    """
    check_page(limit)
    last = None
    if after:
        match = _CURSOR.fullmatch(after)
        if match is None or max(int(match[1]), int(match[2])) >= 2**64:
            raise invalid_cursor(after)
        last = (int(match[1]), int(match[2]), match[3])
    parts = [name.decode() for name in (yield Command(b"ZRANGE", keys.audit(queue), 0, -1))]
    if not parts:
        return [], ""
    pages = yield Batch([_read(queue, part, last, limit) for part in parts])
    rows = [
        (_place(entry_id, part), as_text(flat))
        for part, page in zip(parts, pages, strict=True)
        for entry_id, flat in page
    ]
    rows.sort(key=lambda row: row[0], reverse=True)
    found, size = list[tuple[str, AuditEntry]](), 0
    for (ms, seq, part), row in rows[:limit]:
        found.append((f"{ms}-{seq}~{part}", _entry(row)))
        size += sum(map(len, row.values()))
        if size > _PAGE_BYTES:
            break
    has_more = len(found) < len(rows) or any(len(page) == limit for page in pages)
    return found, found[-1][0] if has_more else ""


def note_tokens(queue: str, tokens: Mapping[str, str]) -> Operation[None]:
    """Writes an entry for each token that was created or revoked since the last look.

    `tokens` are those that there are now: id -> its name, its scopes and when it expires. The first
    server that looks writes the entry.
    """
    kept = as_text((yield Command(b"HGETALL", keys.audit_tokens(queue))))
    for name, text in tokens.items():
        is_new = name not in kept and (
            yield Command(b"HSETNX", keys.audit_tokens(queue), name, text)
        )
        if is_new:
            yield from begin(queue, _token_entry("token created", name, text), TOKENS)
    for name in kept.keys() - tokens.keys():
        if (yield Command(b"HDEL", keys.audit_tokens(queue), name)):
            yield from begin(queue, _token_entry("token revoked", name, kept[name]), TOKENS)


def _token_entry(action: str, name: str, text: str) -> AuditEntry:
    return AuditEntry("fairlane token", action, name, text)


def _drop_oldest(queue: str) -> Operation[None]:
    """Deletes the part whose last entry is the oldest."""
    popped = yield Command(b"ZPOPMIN", keys.audit(queue))
    if popped:
        yield Command(b"UNLINK", keys.audit_part(queue, popped[0].decode()))


def _part_of(entry: AuditEntry) -> str:
    return entry.token or "local"


def _added(queue: str, entry: AuditEntry, part: str) -> list[Command]:
    part = part or _part_of(entry)
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


def _read(queue: str, part: str, last: tuple[int, int, str] | None, limit: int) -> Command:
    """Reads what is older than a place. Entries of several parts may have one id."""
    newest = "+"
    if last is not None:
        is_behind = part < last[2]
        newest = f"{'' if is_behind else '('}{last[0]}-{last[1]}"
    return Command(b"XREVRANGE", keys.audit_part(queue, part), newest, "-", b"COUNT", limit)


def _place(entry_id: bytes, part: str) -> tuple[int, int, str]:
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
