"""A request that is to be created, and how far its creation has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fairlane.errors import RequestExists
from fairlane.protocol import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.operations.create.admission import Admission
    from fairlane.operations.create.digest import Chunk, Digest
    from fairlane.operations.create.intents import Intent
    from fairlane.options import Policy
    from fairlane.protocol.replies import Reply
    from fairlane.protocol.steps import Operation

    Guard = Callable[["Other"], Operation[None]]


class Other(NamedTuple):
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

    def note_reply(self, reply: Reply) -> None:
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
    reply: Reply | None  # of enqueue; None: it is not enqueued
