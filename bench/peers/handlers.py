"""Provides the handlers, which are the same for all peers."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from board import Board

    Sync = Callable[[Any], Any]
    Async = Callable[[Any], Awaitable[Any]]

BODY = "x" * 100
URGENT = "u" * 100
SPIN_S = 0.0001  # processor time of a waiting sub-request that an urgent one overtakes

_now = time.monotonic
_chosen: list[Sync] = []


def body_of(tag: int) -> str:
    """Returns 100 bytes that begin with the tag."""
    return f"{tag:06d}".ljust(100, "x")


def handle(body: Any) -> Any:
    """Calls the blocking handler of the last `choose`; peers can import this name."""
    return _chosen[-1](body)


def choose(kind: str, board: Board, ms: float) -> tuple[Sync, Async]:
    """Returns the handler of this kind, as a blocking and as a coroutine function."""
    pair = _MAKERS[kind](board, ms / 1000)
    _chosen.append(pair[0])
    return pair


def _noop(board: Board, _: float) -> tuple[Sync, Async]:
    def noop(body: Any) -> Any:
        board.touch()
        return body

    async def noop_async(body: Any) -> Any:
        board.touch()
        return body

    return noop, noop_async


def _sleep(board: Board, seconds: float) -> tuple[Sync, Async]:
    def sleep(body: Any) -> Any:
        start = _now()
        time.sleep(seconds)
        board.worked(start)
        return body

    async def sleep_async(body: Any) -> Any:
        start = _now()
        await asyncio.sleep(seconds)
        board.worked(start)
        return body

    return sleep, sleep_async


def _stamp(board: Board, _: float) -> tuple[Sync, Async]:
    def stamp(body: Any) -> Any:
        start = _now()
        board.record(0, start, start)
        return body

    async def stamp_async(body: Any) -> Any:
        return stamp(body)

    return stamp, stamp_async


def _tagged(board: Board, seconds: float) -> tuple[Sync, Async]:
    def tagged(body: Any) -> Any:
        start = _now()
        time.sleep(seconds)
        board.record(int(body[:6]), start, _now())
        return body

    async def tagged_async(body: Any) -> Any:
        start = _now()
        await asyncio.sleep(seconds)
        board.record(int(body[:6]), start, _now())
        return body

    return tagged, tagged_async


def _urgent(board: Board, _: float) -> tuple[Sync, Async]:
    def urgent(body: Any) -> Any:
        start = _now()
        if body[:1] in {"u", b"u"}:
            board.record(0, start, start)
            return body
        board.touch()
        while _now() - start < SPIN_S:
            pass
        return body

    async def urgent_async(body: Any) -> Any:
        return urgent(body)

    return urgent, urgent_async


_MAKERS = {"noop": _noop, "sleep": _sleep, "stamp": _stamp, "tagged": _tagged, "urgent": _urgent}
