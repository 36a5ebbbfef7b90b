"""Tokens on their way: what a script's reply asks to dispatch, and what a pop brought back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import keys, settings
from ..model import Token
from ..scripts import library
from ..steps import Arg, Call, Command

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 300  # tokens of one insert_tokens call; each brings a key and three arguments


def insert(queue: str, request_id: str, tokens: list[Any]) -> list[Call]:
    """The calls that dispatch `tokens`: flat lane, "k.g", delay ms, as mint returned them."""
    if not tokens:
        return []
    calls = []
    lanes = keys.lanes(queue)
    for start in range(0, len(tokens), 3 * _MOST):
        part = tokens[start : start + 3 * _MOST]
        names = [keys.delayed(queue)]
        args: list[Arg] = []
        for lane, permit, delay in zip(part[::3], part[1::3], part[2::3], strict=True):
            names.append(lanes[int(lane)])
            args += (lane, f"{request_id}#{permit.decode()}", delay)
        calls.append(library().insert_tokens(names, tokens=args))
    return calls


def retire(queue: str, request_id: str, summary: list[Any]) -> Call:
    """The call that moves an ended request from `active` into the completion log."""
    state, born, total, done, dead, cancelled, ended, priority, reason, retain_ms = summary
    fields: Iterable[Arg] = (
        *("state", state, "priority", priority, "total", total, "done", done, "dead", dead),
        *("cancelled", cancelled, "born", born, "ended", ended, "reason", reason),
    )
    names = (keys.active(queue), keys.logged(queue), keys.completed(queue), *keys.bound(queue))
    return library().retire(
        names,
        id=request_id,
        born=born,
        keep_ms=retain_ms + settings.MARKER_MS,
        most=settings.LOG_ENTRIES,
        fields=fields,
    )


def drop(queue: str, request_id: str | bytes, seen: str, *, gone: bool = False) -> Call:
    """The call that takes an entry out of `active` while its score is still `seen`.

    `gone`: there is no such request; if there was one, that is logged as `lost`.
    """
    return library().drop(
        (keys.active(queue), keys.completed(queue), *keys.bound(queue)),
        id=request_id,
        seen=seen,
        gone=b"1" if gone else b"0",
        most=settings.LOG_ENTRIES,
    )


def pop(queue: str, block_ms: int, worker: str | None = None) -> Command:
    """The blocking pop over all lanes, most urgent first; `worker` may be woken from it."""
    wake = () if worker is None else (keys.wake(queue, worker),)
    return Command(b"BRPOP", *wake, *keys.lanes(queue), block_ms / 1000)


def parse(raw: bytes) -> Token | None:
    """`<id>#<k>.<g>` as a Token; None for what no release of ours wrote."""
    request_id, _, permit = raw.partition(b"#")
    k, _, g = permit.partition(b".")
    if not (request_id and k.isdigit() and g.isdigit()):
        return None
    return Token(request_id.decode("ascii", "replace"), k.decode(), g.decode())
