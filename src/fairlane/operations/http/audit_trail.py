"""The trail of what callers of the HTTP API changed: a bounded stream beside the queue.

An entry without an outcome is written before a change, so no change is without an entry. When its
outcome is known, an entry with it replaces the first one. If a server dies in between, the first
one stays. A repeated call may leave an entry twice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.operations.control.completion_log import has_entries_before
from fairlane.operations.find.cursor import invalid_cursor
from fairlane.operations.find.requests import check_page
from fairlane.protocol import keys
from fairlane.protocol.request_hash import as_text
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.steps import Operation

_TEXT_MOST = 500  # characters of one value


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: by which token, which call, of which object, and what came of it.

    `status` is the HTTP status, 0 = it is not known: the change goes on, or its server died.
    `detail` says why it was refused. `object` is the id of a request or the name of a schedule.
    """

    who: str
    action: str
    object: str = ""
    given: str = ""
    status: int = 0
    detail: str = ""


def begin(queue: str, entry: AuditEntry) -> Operation[str]:
    """Writes a change that is about to be made; returns the id of the entry."""
    added: bytes = yield _add(queue, entry)
    return added.decode()


def end(queue: str, began: str, entry: AuditEntry) -> Operation[None]:
    """Writes the outcome in place of the entry that `begin` returned; "" = there is none."""
    gone = [Command(b"XDEL", keys.audit(queue), began)] if began else []
    yield Batch([_add(queue, entry), *gone])


def read_trail(
    queue: str, limit: int = 100, after: str = ""
) -> Operation[tuple[list[tuple[str, AuditEntry]], str]]:
    """Returns entries with their ids, newest first, and where the next page continues.

    That is "" at the end. `limit` is 1 to 1,000. Raises InvalidArgument.
    """
    check_page(limit)
    if after and not has_entries_before(after):
        raise invalid_cursor(after)
    newest = f"({after}" if after else "+"
    rows = yield Command(b"XREVRANGE", keys.audit(queue), newest, "-", b"COUNT", limit)
    found = [(entry_id.decode(), _entry(as_text(flat))) for entry_id, flat in rows]
    return found, found[-1][0] if len(found) == limit else ""


def _add(queue: str, entry: AuditEntry) -> Command:
    words = [
        word
        for name in _NAMES
        if (value := getattr(entry, name))
        for word in (name, str(value)[:_TEXT_MOST])
    ]
    most = settings.AUDIT_ENTRIES
    return Command(b"XADD", keys.audit(queue), b"MAXLEN", b"~", most, b"*", *words)


def _entry(found: dict[str, str]) -> AuditEntry:
    status = found.get("status", "")
    texts = {name: found.get(name, "") for name in _NAMES if name != "status"}
    return AuditEntry(**texts, status=int(status) if status.isdecimal() else 0)


_NAMES = tuple(field.name for field in fields(AuditEntry))
