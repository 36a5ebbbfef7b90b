"""Models a request that other requests feed: each finished result is added once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.model.plain.words import agree, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.plain.reference import Reply, Request
    from tests.model.plain.words import Token


class Parts:
    """Parts of bodies that wait for others, by the index that joins them."""

    def __init__(self) -> None:
        self.waiting: dict[int, dict[int, bytes]] = {}  # index -> child -> part
        self.made: list[int] = []  # the indexes of the bodies, each once
        self.passed: list[int] = []  # of results that might have chosen the request

    def add(self, width: int, child: int, index: int, part: bytes) -> list[bytes]:
        """Returns the parts of a body if this is its last one; a later part changes nothing."""
        if index in self.made:
            return []
        row = self.waiting.setdefault(index, {})
        row[child] = part
        if len(row) < width:
            return []
        self.made.append(index)
        del self.waiting[index]
        return [row[one] for one in range(1, width + 1)]

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Returns the fields that Redis keeps of them."""
        return {
            b"%d:%d" % (child, index): part
            for index, row in self.waiting.items()
            for child, part in row.items()
        }


def hand_over(
    request: Request, now: int, reply: Reply, *, since: str, upto: str, open_ms: int, bodies: Any
) -> list[Token]:
    """Adds bodies and moves the cursor over them, in one call."""
    if (refused := _refused(request, now, reply, since)) is not None:
        return refused
    if (
        not bodies
        and since == upto
        and open_ms > 0
        and request.handed
        and request.open_until > now + open_ms / 2
    ):
        agree(reply, [b"ok", [], request.chunks], "a hand-over of nothing")
        return []
    new = []
    for index, body in zip(bodies[::2], bodies[1::2], strict=True):
        if int(index) not in request.parts.made:
            request.parts.made.append(int(index))
            new.append(body)
    return _add(request, now, reply, upto, open_ms, new)


def hand_chosen(
    request: Request, now: int, reply: Reply, *, since: str, upto: str, open_ms: int, width: int,
    is_joined: str, choices: list[bytes],
) -> list[Token]:  # fmt: skip
    """Adds what results choose for the request, and counts each result that was passed, once."""
    if (refused := _refused(request, now, reply, since)) is not None:
        return refused
    agree((width, is_joined), (1, "0"), "a branch")
    new = []
    for name, body in zip(choices[::2], choices[1::2], strict=True):
        index, colon, _ = name.partition(b":")
        known = request.parts.made if colon else request.parts.passed
        if int(index) not in known:
            known.append(int(index))
            new += [body] if colon else []
    return _add(request, now, reply, upto, open_ms, new)


def join(
    request: Request, now: int, reply: Reply, *, since: str, upto: str, open_ms: int, width: int,
    before: bytes, between: bytes, after: bytes, parts: list[bytes],
) -> list[Token]:  # fmt: skip
    """Joins the parts of each index into one body, with its last part."""
    if (refused := _refused(request, now, reply, since)) is not None:
        return refused
    bodies = []
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        child, index = name.split(b":")
        if row := request.parts.add(width, int(child), int(index), part):
            bodies.append(before + between.join(row) + after)
    agree(reply[3], len(bodies), "how many bodies are made")
    return _add(request, now, reply[:3], upto, open_ms, bodies)


def _refused(request: Request, now: int, reply: Reply, since: str) -> list[Token] | None:
    """Refuses a hand-over with an old cursor, which changes nothing."""
    if not request.is_open:
        agree(reply, [b"closed"], "a hand-over after the seal")
        return []
    if request.state == "cancelling":
        agree(reply, [b"cancelling", request.summary()], "a hand-over to what is being cancelled")
        return []
    cursor = request.handed or ",".join("0-0" for _ in since.split(","))
    if cursor == since:
        return None
    agree(reply[3:], [request.chunks], "how many chunks there are")
    return request.repeated(now, reply[:3], b"moved", cursor.encode())


def _add(
    request: Request, now: int, reply: Reply, upto: str, open_ms: int, bodies: list[bytes]
) -> list[Token]:
    request.add(now, bodies)
    request.chunks, request.handed = request.chunks + 1, upto
    request.open_until = now + open_ms
    agree([reply[0], reply[2]], [b"ok", request.chunks], "a hand-over")
    tokens = tokens_of(reply[1])
    request.mint(now, tokens)
    return tokens


FED: dict[str, Callable[..., list[Token]]] = {
    "hand_over": hand_over,
    "hand_chosen": hand_chosen,
    "join": join,
}
