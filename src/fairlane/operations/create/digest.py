"""The digest of a request and the text of its policy: what makes two submissions the same."""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlane.options import Policy

Chunk = list[bytes]
_DIGITS = 32  # of a link, hex: 128 bits
VERSION = b"fairlane request 1"  # changes with the format of the digest


def policy_text(policy: Policy) -> str:
    """Returns the ten numbers of a policy in the form of lua/v1/lib/create/policy.lua."""
    low, high = policy.backoff_ms
    return (
        f"{policy.limit}:{policy.priority}:{policy.attempts}:{low}:{high}:{policy.lease_ms}:"
        f"{policy.retain_ms}:{policy.time_limit_ms}:{policy.durable}:{policy.deadline_ms}"
    )


@lru_cache(maxsize=128)
def terms(policy: Policy) -> tuple[bytes, bytes, bytes]:
    """Returns queue, policy and extras as a digest has them."""
    return policy.queue.encode(), policy_text(policy).encode(), policy.extras.encode()


@lru_cache(maxsize=128)
def sent_extras(policy: Policy, lives: str = "") -> bytes:
    """Returns the extras as the scripts take them, with what no digest has.

    That is the caller, the trace, and which lives of the requests in `after` are meant.
    """
    apart = (("by", policy.by), ("trace", policy.trace))
    extras = policy.extras_with(lives) if lives else policy.extras
    lines = (extras, *(f"{name}={value}" for name, value in apart if value))
    return "\n".join(filter(None, lines)).encode()


class Digest:
    """Hashes a request's queue, policy, extras and chunks; each chunk makes a new link of a chain.

    Two submissions of one id are the same request exactly if their digests are equal.
    The format is bytes of any language. N(x) is a netstring: the length in decimal digits, ":",
    x, ",". Text is UTF-8.

        link 0 = N("fairlane request 1") N(queue) N(policy) N(extras)
        link n = the first 16 bytes of the SHA-256 of: N(link n-1), the lengths of the bodies of
                 chunk n, these bodies

    `policy` is the text of policy_text, `extras` that of Policy.extras. A length takes four bytes,
    the lowest first. The digest is the last link as hex digits.
    """

    __slots__ = ("_begun", "before", "hex")

    def __init__(self, policy: Policy) -> None:
        self.hex, self._begun = _begin(policy)  # up to and with the last chunk added
        self.before = self.hex  # up to the last chunk added, without it

    def copy(self) -> Digest:
        """Returns a digest of the same policy and chunks, to add others to."""
        copied = Digest.__new__(Digest)
        copied.hex, copied.before = self.hex, self.before
        copied._begun = self._begun  # noqa: SLF001  one of its own class
        return copied

    def continue_at(self, link: str) -> None:
        """Continues after the chunks of which this is the last link, hex digits."""
        if link != self.hex:
            self.before = self.hex = link
            self._begun = b""

    def add(self, chunk: Chunk) -> str:
        """Adds a chunk; returns the digest up to and with it, hex."""
        begun = self._begun or _netstring(bytes.fromhex(self.hex))
        lengths = struct.pack(f"<{len(chunk)}I", *map(len, chunk))
        content = b"".join((begun, lengths, *chunk))
        self.before, self.hex = self.hex, hashlib.sha256(content).hexdigest()[:_DIGITS]
        self._begun = b""
        return self.hex


@lru_cache(maxsize=128)
def _begin(policy: Policy) -> tuple[str, bytes]:
    """Returns link 0 of a chain as hex digits, and what the hash of the first chunk begins with."""
    link = b"".join(map(_netstring, (VERSION, *terms(policy))))
    return link.hex(), _netstring(link)


def _netstring(text: bytes) -> bytes:
    return b"%d:%b," % (len(text), text)
