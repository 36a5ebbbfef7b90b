"""The changes that people and the leading worker make to a modelled request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.plain.words import NEVER, agree, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.plain.reference import Reply, Request
    from tests.model.plain.words import Token


def hasten(request: Request, now: int, reply: Reply) -> list[Token]:
    """Moves the permit that waits longest in another lane to the first, if nothing has started."""
    last = max(request.born, request.opens, request.seq // 1000, request.aged)
    if not request.options.ageing_ms or last + request.options.ageing_ms > now:
        agree(reply, [b"early"], "a request that has not waited for so long")
        return []
    queued = [permit for permit in request.standing("queued") if not permit.asleep]
    later = [permit for permit in queued if permit.lane % 100]
    agree([reply[0], len(reply[1])], [b"ok", 3 * bool(later)], "a request that ages")
    tokens = tokens_of(reply[1])
    if later:
        first = min(later, key=lambda one: one.g)
        request.queue(tokens[0], first.k, 0, now, lane=0)
    request.aged = now
    return tokens


def open_gate(
    request: Request, now: int, reply: Reply, *, found: str, left: str, reason: str
) -> list[Token]:
    """Opens the gate once: the other requests have ended."""
    agree((found, left, reason), ("end:z", "", ""), "what the leader has found")
    if request.opens != NEVER:
        agree(reply, [b"other"], "a gate that opens by time, or is open")
        return []
    request.opens, request.gated = 0, False
    agree(reply[0], b"ok", "an open gate")
    tokens = tokens_of(reply[1])
    request.mint(now, tokens)
    return tokens


def hold(request: Request, now: int, reply: Reply, *, ms: int) -> list[Token]:
    """Starts nothing more for a time; queued tokens become stale."""
    if now + ms > request.opens:
        request.opens, request.gated = now + ms, True
        request.park_awake(room=0)
    agree([reply[0], reply[2]], [b"ok", b""], "a hold")
    tokens = tokens_of(reply[1])
    request.mint(now, tokens)
    return tokens


def set_limit(request: Request, now: int, reply: Reply, *, limit: int) -> list[Token]:
    """Parks the queued permits above the limit, and the newest for which there is no room."""
    if limit == request.limit:
        return request.repeated(now, reply, b"ok")
    request.limit = limit
    for permit in request.standing("queued"):
        if permit.k >= limit:
            permit.park()
    room = max(0, min(limit - len(request.held), request.ready(now)))
    request.park_awake(room)
    agree(reply[0], b"ok", "a new limit")
    tokens = tokens_of(reply[1])
    request.mint(now, tokens)
    return tokens


def set_priority(request: Request, now: int, reply: Reply, *, priority: int) -> list[Token]:
    """Moves all tokens to the new lane."""
    if priority == request.priority:
        return request.repeated(now, reply, b"ok")
    request.priority = priority
    agree(reply[0], b"ok", "a new priority")
    return queue_all_again(request, now, tokens_of(reply[1]))


def queue_all_again(request: Request, now: int, tokens: list[Token]) -> list[Token]:
    """Gives new tokens to all that is queued, and to all that has become due."""
    new = request.wanted(now)
    moved = {permit.k: permit.due for permit in request.standing("queued")}
    moved |= {k: due for k, due in new if k is not None}
    free = [due for k, due in new if k is None]
    agree(len(tokens), len(moved) + len(free), f"how many of {tokens} are queued")
    for token in tokens:
        known = token.k in moved
        due = moved[token.k] if known else free.pop()
        request.queue(token, token.k if known else None, due, now)
        if not known or any(token.k == k for k, _ in new):
            request.permits[token.k].asleep = due > now
    return tokens


def set_share(request: Request, now: int, reply: Reply, *, share: int) -> list[Token]:
    """Queues all tokens again, because they name the share."""
    former, _, tenant = request.turn.partition(":")
    if not tenant:
        agree(reply, [b"plain"], "a share without a tenant")
        return []
    if int(former) == share:
        return request.repeated(now, reply, b"ok")
    request.turn = f"{share}:{tenant}"
    agree(reply[0], b"ok", "a new share")
    return queue_all_again(request, now, tokens_of(reply[1]))


CHANGES: dict[str, Callable[..., list[Token]]] = {
    "hasten": hasten,
    "open_gate": open_gate,
    "hold": hold,
    "set_limit": set_limit,
    "set_priority": set_priority,
    "set_share": set_share,
}
