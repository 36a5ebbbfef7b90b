"""Notes which request the handler that runs here waits for, so that its worker can report it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_note: ContextVar[Callable[[str], None] | None] = ContextVar("awaited", default=None)


def note_awaited_by(note: Callable[[str], None]) -> None:
    """Lets `note` take the id of a request while calls of this context wait for it, then ""."""
    _note.set(note)


@contextmanager
def awaiting(request_id: str) -> Iterator[None]:
    """Notes that the caller waits for a request until the block ends; no-op outside a handler."""
    note = _note.get()
    if note is None:
        yield
        return
    note(request_id)
    try:
        yield
    finally:
        note("")
