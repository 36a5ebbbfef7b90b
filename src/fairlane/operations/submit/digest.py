"""The digest of a request and the text of its policy: what makes two submissions the same."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from fairlane.model import Policy

Chunk = list[bytes]
VERSION = b"fairlane request 1"  # changes with the format of the digest


def policy_text(policy: Policy) -> str:
    """Returns the ten numbers of a policy in the form of lua/v1/lib/create/policy.lua."""
    low, high = policy.backoff_ms
    return (
        f"{policy.limit}:{policy.priority}:{policy.attempts}:{low}:{high}:{policy.lease_ms}:"
        f"{policy.retain_ms}:{policy.time_limit_ms}:{policy.durable}:{policy.deadline_ms}"
    )


def terms(policy: Policy) -> dict[str, str]:
    """Returns a policy as the arguments of enqueue.lua and submit.lua."""
    return {"queue": policy.queue, "policy": policy_text(policy), "parent": policy.parent}


def digested(begun: Hash, chunk: Chunk) -> Hash:
    """Adds a chunk to a hash: the length of each body (4 bytes, little-endian), then the bodies."""
    begun.update(struct.pack(f"<{len(chunk)}I", *map(len, chunk)) + b"".join(chunk))
    return begun


class Digest:
    """Hashes a request's queue, policy, parent and chunks; each chunk makes a new link of a chain.

    Two submissions of one id are the same request exactly if their digests are equal.
    The format is bytes of any language. N(x) is a netstring: the length in decimal digits, ":",
    x, ",". Text is UTF-8.

        link 0 = N("fairlane request 1") N(queue) N(policy) N(parent)
        link n = SHA-256 of: N(link n-1), the lengths of the bodies of chunk n, these bodies

    `policy` is the text of policy_text; a length takes four bytes, the lowest first. The digest is
    the last link as hex digits.
    """

    def __init__(self, policy: Policy) -> None:
        parts = (VERSION, *(part.encode() for part in terms(policy).values()))
        self._link = self._before = b"".join(map(_netstring, parts))

    def add(self, chunk: Chunk) -> str:
        """Adds a chunk; returns the digest up to and with it, hex."""
        self._before, self._link = self._link, digested(self.begun(), chunk).digest()
        return self.hex

    def begun(self) -> Hash:
        """Returns the hash of the next chunk before its content."""
        return hashlib.sha256(_netstring(self._link))

    @property
    def hex(self) -> str:
        """The digest up to and with the last chunk added."""
        return self._link.hex()

    @property
    def before(self) -> str:
        """The digest up to the last chunk added, without it."""
        return self._before.hex()


def _netstring(text: bytes) -> bytes:
    return b"%d:%b," % (len(text), text)
