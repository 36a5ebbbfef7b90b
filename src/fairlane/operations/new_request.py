"""A new request before it is written: its id, its digest, and how far its creation has come."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Unpack

from fairlane import settings
from fairlane.common.chunking import Body, chunks
from fairlane.errors import RequestExists
from fairlane.options import policy_of
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.operations.admission import Admission
    from fairlane.operations.create import Intent
    from fairlane.option_types import RequestOptions
    from fairlane.options import Policy
    from fairlane.protocol.scripts import EnqueueReply
    from fairlane.protocol.steps import Operation

    Guard = Callable[["FormerRequest"], Operation[None]]


# ------------------------------------------------------------------ digest
# The digest of a request and the text of its policy: what makes two submissions the same.


Chunk = list[bytes]
_DIGITS = 32  # of a link, hex: 128 bits
VERSION = b"fairlane request 1"  # changes with the format of the digest


def policy_text(policy: Policy) -> str:
    """Returns the ten numbers of a policy in the form of lua/v1/lib/create.lua."""
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


# ------------------------------------------------------------------ content id
# An id made of a request's content, so that the same content is submitted once.


ID_DIGITS = 40  # hex: 160 bits of SHA-256


class ContentId:
    """An id made of a request's options and its bodies, however the bodies are cut into chunks.

    Options at their defaults are not part of it, so a release with more options makes the same ids.
    """

    def __init__(self, policy: Policy) -> None:
        chosen = [
            (option.name, getattr(policy, option.name))
            for option in fields(policy)
            if option.compare and getattr(policy, option.name) != option.default
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


# ------------------------------------------------------------------ new request
# A request that is to be created, and how far its creation has come.


class FormerRequest(NamedTuple):
    """A request that has the id of a new one: who submitted it, and the start of its life in ms.

    `is_same`: it is still open, and has the same content so far. So the new one goes on with it.
    """

    id: str
    by: str
    born: int
    is_same: bool


class Created(NamedTuple):
    """What Redis has of a request after its create: new, or found with the same first chunk."""

    chunks: int
    chain: str  # the digest over these chunks, hex
    is_open: bool
    total: int  # of their sub-requests
    left_out: int = 0  # repeats among them, which do not count


@dataclass(slots=True)
class NewRequest:
    """A request to create. `digest` covers its first chunk, and later chunks as they follow.

    `open_ms` is how long an open request may go without a chunk; 0 = it is sealed. `room` waits for
    room, None = as its group does. `created`, `born` (ms, the life of the id) and `lives` (those of
    the requests that it starts after) are set by create. With `takes_back` an error of its caller
    withdraws an incomplete request. `guard` is run before another request of the id is cancelled,
    replaced or added to, and raises to prevent that. `unsure` is the digest with a chunk whose
    reply was lost.
    """

    id: str
    policy: Policy
    digest: Digest
    bodies: Chunk
    open_ms: int = 0
    room: Admission | None = None
    takes_back: bool = True
    guard: Guard | None = None
    born: int = 0
    created: Created | None = None
    unsure: Digest | None = None
    ids: bytes = b""  # of the bodies, if they are to be distinct
    lives: str = ""  # see operations/create/others.py

    def begin(self, bodies: Chunk) -> None:
        """Makes these bodies its first chunk. Raises InvalidArgument for a key that is no text."""
        self.bodies, self.ids = bodies, self.policy.ids_of(bodies)
        self.digest.add(bodies)

    @property
    def names(self) -> tuple[bytes, ...]:
        """Returns the keys of the scripts that create or fill it."""
        own = keys.request_keys(self.id)
        return (*own, keys.unique_ids(self.id)) if self.policy.distinct else own

    @property
    def is_complete(self) -> bool:
        """Returns True if Redis has the request sealed, with exactly the chunks of its digest."""
        created = self.created
        return created is not None and not created.is_open and created.chain == self.digest.hex

    def note_reply(self, reply: EnqueueReply) -> None:
        """Notes what a reply ok, ended or exists of enqueue brings."""
        if reply.is_exists:
            self.born = reply.summary.born
            total, left = reply.summary.total, reply.left_out or 0
            chain = reply.chain.decode()
            self.created = Created(reply.chunks, chain, bool(reply.open), total, left)
            return
        self.born = reply.born if reply.is_ok else reply.summary.born
        left = (reply.left_out or 0) if reply.is_ok else 0
        total = len(self.bodies) - left
        self.created = Created(1, self.digest.hex, self.open_ms > 0, total, left)


class RequestKept(RequestExists):
    """The id has another request, which stays. It has `total` sub-requests so far."""

    def __init__(self, request_id: str, total: int) -> None:
        super().__init__(f"request {request_id} is there already")
        self.total = total


class Begun(NamedTuple):
    """How far the creation of a request of a group has come."""

    new: NewRequest
    intent: Intent | None  # None: it is not announced
    reply: EnqueueReply | None  # None: it is not enqueued
