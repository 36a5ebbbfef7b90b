"""Sends many independent steps in bounded round trips; one bad key need not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.protocol.steps import Batch, Call, Command

if TYPE_CHECKING:
    from collections.abc import Sequence


R = TypeVar("R")


TOGETHER = 100  # steps of one round trip


async def run_all(steps: Sequence[Command | Call[Any]]) -> list[Any]:
    """Sends any number of steps, or none; returns their replies."""
    replies: list[Any] = []
    for start in range(0, len(steps), TOGETHER):
        replies += await Batch(steps[start : start + TOGETHER])
    return replies


async def run_each(steps: Sequence[Command | Call[Any]]) -> list[Any]:
    """As `run_all`; a failed step has its error as its reply. Raises RedisUnreachable."""
    replies: list[Any] = []
    for start in range(0, len(steps), TOGETHER):
        replies += await Batch(steps[start : start + TOGETHER], lenient=True)
    return replies


async def run_each_or_error(
    steps: Sequence[Command | Call[Any]], together: int = TOGETHER
) -> list[Any]:
    """As `run_each`, with RedisUnreachable as a reply too, because other nodes may answer.

    `together` is how many steps share a round trip.
    """
    replies: list[Any] = []
    for start in range(0, len(steps), together):
        part = steps[start : start + together]
        try:
            replies += await Batch(part, lenient=True)
        except RedisUnreachable as error:
            replies += [error] * len(part)
    return replies


async def call_each(calls: Sequence[Call[R]], together: int = TOGETHER) -> list[R | FairlaneError]:
    """As `run_each_or_error`, for calls of one script."""
    replies: list[R | FairlaneError] = await run_each_or_error(calls, together)
    return replies
