"""What makes two submissions the same request: their terms and their bodies, chunk by chunk."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from fairlane.model import Policy

Chunk = list[bytes]


def terms(policy: Policy) -> dict[str, int | str]:
    """The policy in the words of enqueue.lua."""
    return {
        "queue": policy.queue,
        "priority": policy.priority,
        "limit": policy.limit,
        "attempts": policy.attempts,
        "backoff_min": policy.backoff_ms[0],
        "backoff_max": policy.backoff_ms[1],
        "lease_ms": policy.lease_ms,
        "retain_ms": policy.retain_ms,
        "deadline_ms": policy.deadline_ms,
        "time_limit_ms": policy.time_limit_ms,
        "durable": policy.durable,
        "parent": policy.parent,
    }


def digested(begun: Hash, chunk: Chunk) -> Hash:
    """The hash with the content of a chunk: the lengths of its bodies, then these."""
    begun.update(struct.pack(f"<{len(chunk)}I", *map(len, chunk)) + b"".join(chunk))
    return begun


class Digest:
    """SHA-256 over the policy and every chunk so far, chained; bodies are length-prefixed.

    Two submissions with one id are the same request exactly if their digests are.
    """

    def __init__(self, policy: Policy) -> None:
        self._link = self._before = repr(tuple(terms(policy).values())).encode()

    def add(self, chunk: Chunk) -> str:
        """The digest up to and with `chunk`, hex."""
        self._before, self._link = self._link, digested(self.begun(), chunk).digest()
        return self.hex

    def begun(self) -> Hash:
        """The hash of the next chunk before its content."""
        return hashlib.sha256(b"%d|" % len(self._link) + self._link)

    @property
    def hex(self) -> str:
        """The digest up to and with the last chunk added."""
        return self._link.hex()

    @property
    def before(self) -> str:
        """The digest up to the last chunk added, without it."""
        return self._before.hex()
