"""What the leading worker does to a request that ages, or that starts after another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.words import NEVER, agree, tokens_of

if TYPE_CHECKING:
    from tests.model.reference import Reply, Request
    from tests.model.words import Token


def hasten(request: Request, now: int, reply: Reply) -> list[Token]:
    """The permit that waits for longest goes to the first lane, if nothing has started."""
    last = max(request.born, request.opens, request.seq // 1000, request.aged)
    if not request.options.ageing_ms or last + request.options.ageing_ms > now:
        agree(reply, [b"early"], "a request that has not waited for so long")
        return []
    awake = [permit for permit in request.standing("queued") if not permit.asleep]
    agree([reply[0], len(reply[1])], [b"ok", 3 * bool(awake)], "a request that ages")
    tokens = tokens_of(reply[1])
    if awake:
        first = min(awake, key=lambda one: one.g)
        request.queue(tokens[0], first.k, 0, now, lane=0)
    request.aged = now
    return tokens


def open_gate(request: Request, now: int, reply: Reply) -> list[Token]:
    """The other requests have ended."""
    if request.opens == NEVER:
        request.opens = 0
    agree(reply[0], b"ok", "an open gate")
    tokens = tokens_of(reply[1])
    request.mint(now, tokens)
    return tokens


CHORES = {"hasten": hasten, "open_gate": open_gate}
