"""Publishes messages to a topic, and sets how long it keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane import settings
from fairlane.errors import InvalidArgument
from fairlane.protocol import keys
from fairlane.protocol.scripts import library
from fairlane.protocol.steps import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Operation

_MARKER_MS = 600_000  # a call is repeated for two minutes at most
LEAST_RETAIN_S, LONGEST_RETAIN_S = 1, 366 * 86_400
MOST_RETAINED = 100_000_000


def publish(name: str, messages: Sequence[bytes]) -> Operation[range]:
    """Adds up to 1,000 messages to a topic, all or none; returns their numbers.

    A repeat of a call with a lost reply adds nothing again. Raises RedisError.
    """
    call = library().publish(
        (*keys.topic(name), keys.topic_op(name, keys.new_id())),
        ttl=_MARKER_MS,
        retain_ms=settings.TOPIC_RETAIN_MS,
        retain_count=settings.TOPIC_RETAIN_COUNT,
        messages=messages,
    )
    reply = yield from call.run()
    return range(reply.first, reply.last + 1)


def set_retention(name: str, age_s: float | None, count: int | None) -> Operation[None]:
    """Sets how long a topic keeps messages, and how many; None leaves one of them as it is.

    It applies from the next publication on. Raises InvalidArgument.
    """
    fields: list[str | int] = []
    if age_s is not None:
        if not isinstance(age_s, (int, float)) or not LEAST_RETAIN_S <= age_s <= LONGEST_RETAIN_S:
            raise InvalidArgument(
                f"retention of {age_s!r} seconds is not valid: {LEAST_RETAIN_S} to "
                f"{LONGEST_RETAIN_S:,} are expected"
            )
        fields += ["retain_ms", int(age_s * 1000)]
    if count is not None:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_RETAINED:
            raise InvalidArgument(
                f"retention of {count!r} messages is not valid: 1 to {MOST_RETAINED:,} are expected"
            )
        fields += ["retain_count", count]
    if fields:
        yield Command(b"HSET", keys.topic(name)[1], *fields)


def delete_topic(name: str) -> Operation[bool]:
    """Deletes a topic with its messages and subscribers; returns False if there was none.

    After a lost reply the repeat finds none.
    """
    return bool((yield Command(b"UNLINK", *keys.topic(name))))
