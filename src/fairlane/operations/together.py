"""Many independent steps in bounded round trips; one bad key need not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import FairlaneError, RedisUnreachable
from ..steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOGETHER = 100  # steps of one round trip; after an error so many are asked one by one


def batch(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The replies, however many steps there are, also none."""
    replies: list[Any] = []
    for start in range(0, len(steps), _TOGETHER):
        replies += yield Batch(steps[start : start + _TOGETHER])
    return replies


def each(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The same with the error of a step as its reply. Raises RedisUnreachable."""
    replies: list[Any] = []
    for start in range(0, len(steps), _TOGETHER):
        some = steps[start : start + _TOGETHER]
        try:
            replies += yield Batch(some)
        except RedisUnreachable:
            raise
        except FairlaneError:
            for step in some:
                replies.append((yield from _one(step)))
    return replies


def _one(step: Command | Call) -> Operation[Any]:
    try:
        return (yield step)
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        return error
