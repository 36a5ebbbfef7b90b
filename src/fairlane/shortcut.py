"""Submits one request in one call, without a queue of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from fairlane import settings
from fairlane.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.common.chunking import Body
    from fairlane.option_types import Duration, RequestOptions
    from fairlane.request import Request


def submit_request(
    bodies: Iterable[Body],
    *,
    redis: str | None = None,
    queue: str = settings.DEFAULT_QUEUE,
    id: str | None = None,  # noqa: A002  the word of the API
    max_wait: Duration = 0.0,
    **options: Unpack[RequestOptions],
) -> Request:
    """Submits to the queue at `redis` (see Queue.from_url); options as Queue.submit_request."""
    to = Queue.from_url(redis, name=queue)
    return to.submit_request(bodies, id=id, max_wait=max_wait, **options)
