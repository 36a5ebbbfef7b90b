"""Handles a server that lacks a script, and a user without the right to load it.

After a restart or a failover a deployer may be about to load the scripts, so the driver waits as
for a server that does not answer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import redis

from fairlane.errors import ScriptsNotLoaded

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = "NOTLOADED"  # ours; no server returns it


@contextlib.contextmanager
def may_refuse_to_load(line: Any) -> Iterator[None]:
    """Replaces the error of an EVAL that the user may not call: the scripts are not loaded."""
    try:
        yield
    except redis.exceptions.NoPermissionError as error:
        if "'eval'" not in str(error):  # then it ran: a command inside the script was refused
            raise
        raise redis.exceptions.ResponseError(
            f"{CODE} scripts of this release are not loaded at {name_of(line)} and this user may "
            "not load them: a deployer runs `fairlane scripts load`"
        ) from None


def not_loaded(text: str) -> ScriptsNotLoaded:
    """Returns our error for CODE."""
    return ScriptsNotLoaded(text.removeprefix(f"{CODE} "))


def name_of(line: Any) -> str:
    """Returns the address of a connection, for messages."""
    path = getattr(line, "path", None)
    return str(path) if path else f"{line.host}:{line.port}"
