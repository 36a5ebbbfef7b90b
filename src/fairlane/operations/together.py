"""Many independent steps in bounded round trips; one bad key need not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOGETHER = 100  # steps of one round trip


def batch(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The replies, however many steps there are, also none."""
    replies: list[Any] = []
    for start in range(0, len(steps), _TOGETHER):
        replies += yield Batch(steps[start : start + _TOGETHER])
    return replies


def each(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The same with the error of a step, a FairlaneError, as its reply. Raises RedisUnreachable."""
    replies: list[Any] = []
    for start in range(0, len(steps), _TOGETHER):
        replies += yield Batch(steps[start : start + _TOGETHER], lenient=True)
    return replies
