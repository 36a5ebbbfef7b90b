"""A paused queue: workers finish what they hold and take nothing; submissions go on.

The pause stands in the queue's `conf`, and each beat of a worker returns it. So all workers use a
change within a beat, and a queue without a pause costs no further command.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from fairlane.common.text import format_duration, of_queue
from fairlane.errors import InvalidArgument
from fairlane.protocol import keys, scripts
from fairlane.protocol.server_info import time_ms
from fairlane.protocol.steps import Batch, Command

if TYPE_CHECKING:
    from fairlane.protocol.scripts import PauseQueueReply


ENDLESS_MS = 10**15  # as a period and as a time: until the queue is resumed
LONGEST_S = 365 * 86_400


class QueuePause(NamedTuple):
    """Until when a queue is paused, and the time of its Redis, in ms; 0 = it is not paused."""

    paused_until: int = 0
    now_ms: int = 0

    @property
    def is_paused(self) -> bool:
        """Returns True if workers take nothing now."""
        return self.paused_until > self.now_ms

    @property
    def until_ms(self) -> int | None:
        """Returns when the queue resumes without a call; None = never, or it is not paused."""
        return self.paused_until if self.is_paused and self.paused_until < ENDLESS_MS else None

    @property
    def text(self) -> str:
        """Returns the state for people, as `paused until 2026-03-01 07:00:00 UTC (in 10 min)`."""
        if not self.is_paused:
            return "not paused"
        if self.until_ms is None:
            return "paused until it is resumed"
        left = format_duration(self.until_ms - self.now_ms + 999)
        return f"paused until {time_text(self.until_ms)} (in {left})"


def time_text(ms: int) -> str:
    """Returns a time of a Redis for people, as `2026-03-01 07:00:00 UTC`."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def check_period(for_s: float | None) -> int:
    """Returns the length of a pause in ms; None = until it is resumed. Raises InvalidArgument."""
    if for_s is None:
        return ENDLESS_MS
    is_number = isinstance(for_s, (int, float)) and not isinstance(for_s, bool)
    if not is_number or not 0 < for_s <= LONGEST_S:
        raise InvalidArgument(
            f"for_s {for_s!r} is not valid: more than 0 seconds and at most a year are expected, "
            "None = until the queue is resumed"
        )
    return max(1, round(for_s * 1000))


async def pause_queue(queue: str, for_s: float | None = None) -> QueuePause:
    """Pauses a queue for so many seconds; None = until it is resumed. Raises InvalidArgument."""
    reply = await _pause_queue(queue, check_period(for_s))
    return QueuePause(reply.paused_until, reply.now)


async def resume_queue(queue: str) -> bool:
    """Resumes a queue; returns False if it was not paused.

    The state is read first: the reply to a repeated resume would name what the first one left.
    """
    before = await read_pause(queue)
    await _pause_queue(queue, 0)
    return before.is_paused


async def _pause_queue(queue: str, period: int) -> PauseQueueReply:
    call = scripts.pause_queue((keys.conf(queue),), period=period, longest=ENDLESS_MS)
    return await call


async def read_pause(queue: str) -> QueuePause:
    """Returns until when a queue is paused."""
    until, time = await Batch(
        [Command(b"HGET", keys.conf(queue), b"paused_until"), Command(b"TIME")]
    )
    return QueuePause(read_until(until), time_ms(time))


def read_until(value: bytes | None) -> int:
    """Returns the time that stands in `conf`; 0 for none, or for what no release of ours wrote."""
    return int(value) if value and value.isdigit() else 0


def remedy(queue: str, pause: QueuePause) -> str:
    """Returns the state of a paused queue with what resumes it."""
    return f"queue {queue} is {pause.text}: fairlane queue resume{of_queue(queue)} resumes it"
