"""Finds whether permits are queued for given tokens: else a token is stale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.batching import run_all
from fairlane.protocol import keys, request_hash
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.model import Token
    from fairlane.protocol.steps import Operation

_FIRST = ("0", "1")  # the permit and g of a new request's first token


def are_queued(
    tokens: Sequence[Token], ask: Callable[[Sequence[Command]], Operation[list[Any]]] = run_all
) -> Operation[list[bool]]:
    """Returns for each token whether its permit waits for it; `ask` sends the commands.

    The first permit of a new request has no field (lua/v1/lib/permits/permits.lua). So the
    counts are read for it, too.
    """
    texts = yield from ask(
        [Command(b"HGET", keys.permits(one.request_id), one.k) for one in tokens]
    )
    found = [
        isinstance(text, bytes) and text.startswith(f"q:{one.g}:".encode())
        for one, text in zip(tokens, texts, strict=True)
    ]
    first = [
        at
        for at, (one, text) in enumerate(zip(tokens, texts, strict=True))
        if text is None and (one.k, one.g) == _FIRST
    ]
    if first:
        names = ("seq", "queued")
        rows = yield from ask([request_hash.hmget(tokens[at].request_id, *names) for at in first])
        for at, row in zip(first, rows, strict=True):
            is_read = isinstance(row, list)
            found[at] = is_read and request_hash.parse_fields(names, row) == ["1", "1"]
    return found
