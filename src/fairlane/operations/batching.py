"""Many independent steps in bounded round trips; one bad key need not stop the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.errors import RedisUnreachable
from fairlane.protocol.steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

TOGETHER = 100  # steps of one round trip


def run_all(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The replies, however many steps there are, also none."""
    replies: list[Any] = []
    for start in range(0, len(steps), TOGETHER):
        replies += yield Batch(steps[start : start + TOGETHER])
    return replies


def run_each(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The same with the error of a step, a FairlaneError, as its reply. Raises RedisUnreachable."""
    replies: list[Any] = []
    for start in range(0, len(steps), TOGETHER):
        replies += yield Batch(steps[start : start + TOGETHER], lenient=True)
    return replies


def run_each_or_error(
    steps: Sequence[Command | Call], together: int = TOGETHER
) -> Operation[list[Any]]:
    """As `each`, with RedisUnreachable as a reply too: other nodes may answer.

    `together` is how many steps share a round trip.
    """
    replies: list[Any] = []
    for start in range(0, len(steps), together):
        part = steps[start : start + together]
        try:
            replies += yield Batch(part, lenient=True)
        except RedisUnreachable as error:
            replies += [error] * len(part)
    return replies
