"""Finds the Redis for programs and commands that may leave out its URL."""

from __future__ import annotations

from fairlane import settings
from fairlane.errors import InvalidArgument


def resolve_url(url: str | None) -> str:
    """Returns `url`, or FAIRLANE_REDIS, or the URL of the embedded server, which it starts."""
    if url is not None and not isinstance(url, str):
        raise InvalidArgument(
            f"Redis URL of type {type(url).__name__} is not valid: text is expected"
        )
    named = settings.redis_url(url)
    if named:
        return named
    from fairlane.embedded import ensure

    return ensure()
