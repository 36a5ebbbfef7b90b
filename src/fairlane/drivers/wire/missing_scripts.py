"""A server that does not know a script, and a user who may not load it: somebody else has to.

Whoever watches over the scripts may be about to, after a restart or a failover; so it is waited
for, as for a server that does not answer.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import redis

from fairlane.errors import ScriptsNotLoaded

if TYPE_CHECKING:
    from collections.abc import Iterator

CODE = "NOTLOADED"  # ours; no server says so


@contextlib.contextmanager
def may_refuse_to_load(line: Any) -> Iterator[None]:
    """Within it the answer to EVAL is read; a user who may not is told what it comes to."""
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
    """The error of ours for the one above."""
    return ScriptsNotLoaded(text.removeprefix(f"{CODE} "))


def name_of(line: Any) -> str:
    """Where a connection leads, for messages."""
    path = getattr(line, "path", None)
    return str(path) if path else f"{line.host}:{line.port}"
