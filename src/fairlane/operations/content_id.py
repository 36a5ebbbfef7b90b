"""An id made of a request's content, so that the same content is submitted once."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING, Unpack

from fairlane import settings
from fairlane.common.chunking import Body, chunks
from fairlane.options import APART, policy_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlane.option_types import RequestOptions
    from fairlane.options import Policy


ID_DIGITS = 40  # hex: 160 bits of SHA-256


class ContentId:
    """An id made of a request's options and its bodies, however the bodies are cut into chunks.

    Options at their defaults are not part of it, so a release with more options makes the same ids.
    Nor are the names of the tasks, and of the fields that views hide.
    """

    def __init__(self, policy: Policy) -> None:
        chosen = [
            (option.name, getattr(policy, option.name))
            for option in fields(policy)
            if option.compare
            and option.name not in APART
            and getattr(policy, option.name) != option.default
        ]
        self._hash = hashlib.sha256(b"fairlane content 1 %a\n" % chosen)

    def add(self, bodies: Iterable[bytes]) -> None:
        """Takes the next bodies; each counts with its length."""
        for body in bodies:
            self._hash.update(b"%d:" % len(body))
            self._hash.update(body)

    @property
    def id(self) -> str:
        """Returns the id of all that was added."""
        return self._hash.hexdigest()[:ID_DIGITS]


def content_id(
    bodies: Iterable[Body],
    *,
    queue: str = settings.DEFAULT_QUEUE,
    **options: Unpack[RequestOptions],
) -> str:
    """Returns the id of this content: 40 hex digits, the same for the same bodies and options.

    `options` are those of Queue.submit_request. Submitted under this id, the same content is one
    request however often it is submitted, until its retention is over. Raises InvalidArgument.
    """
    digest = ContentId(policy_of(queue, **options))
    for chunk in chunks(bodies):
        digest.add(chunk)
    return digest.id
