"""The data types of the model: sub-requests, permits, tokens. None of them needs Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.support.scripts.requests import POLICY

LATE = b"the request's deadline passed before it could start"
NEVER = 2**53 - 1  # when the gate of a request opens that starts after another one
DIED = b"the worker died or let its lease expire"


class Disagreement(AssertionError):
    """Raised if Redis and the model differ: one of them is wrong."""


def agree(said: Any, expected: Any, what: str) -> None:
    """Raises Disagreement unless both are the same."""
    if said != expected:
        raise Disagreement(f"{what}: Redis says {said!r}, the model {expected!r}")


class Token(NamedTuple):
    """A token that a script asks to dispatch."""

    lane: int
    k: int
    g: int
    delay: int
    turn: str = ""  # share and tenant


class Copy(NamedTuple):
    """A token in a lane: a hint to a permit of a request."""

    id: str
    k: int
    g: int
    turn: str = ""

    @property
    def text(self) -> str:
        return f"{self.id}#{self.k}.{self.g}" + (f"@{self.turn}" if self.turn else "")

    @property
    def share(self) -> int:
        return int(self.turn.partition(":")[0])

    @property
    def tenant(self) -> str:
        """The tenant; "" = none, so the token is in the lane itself."""
        return self.turn.partition(":")[2]

    @property
    def in_lane(self) -> Copy:
        """What the lane holds for the token: the token itself, or a placeholder."""
        return PLACEHOLDER if self.turn else self


PLACEHOLDER = Copy("", 0, 0)  # in a lane, for one token of a tenant


def tokens_of(flat: list[Any]) -> list[Token]:
    """Returns the tokens of a reply (flat lane, "k.g", delay) in the order they were minted."""
    found = []
    for lane, permit, delay in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        number, _, turn = permit.partition(b"@")
        k, _, g = number.partition(b".")
        found.append(Token(int(lane), int(k), int(g), int(delay), turn.decode()))
    return sorted(found, key=lambda token: token.g)


class Options(NamedTuple):
    """The options of a request, by the names of enqueue."""

    queue: str = "req"
    priority: int = 5
    limit: int = 2
    attempts: int = 3
    backoff_min: int = 1_000
    backoff_max: int = 10_000
    lease_ms: int = 30_000
    retain_ms: int = 3_600_000
    deadline_ms: int = 0
    time_limit_ms: int = 0
    durable: int = 0
    extras: str = ""
    shards: str = ""

    @classmethod
    def read(cls, queue: str, policy: str, extras: str, shards: str) -> Options:
        """Reads the options that an operation of the product has sent."""
        numbers = dict(zip(POLICY, map(int, policy.split(":")), strict=True))
        return cls(queue=queue, extras=extras, shards=shards, **numbers)

    @property
    def delay_ms(self) -> int:
        """How long nothing starts."""
        return int(self.extra("delay") or 0)

    @property
    def ageing_ms(self) -> int:
        """After how long without a start it may be hastened; 0 = never."""
        return int(self.extra("ageing") or 0)

    @property
    def waits(self) -> bool:
        """Whether it starts after another request."""
        return bool(self.extra("after"))

    @property
    def is_distinct(self) -> bool:
        """Whether it takes each key once."""
        return bool(self.extra("distinct"))

    @property
    def turn(self) -> str:
        """Share and tenant; "" = it names no tenant."""
        tenant = self.extra("tenant")
        return f"{self.extra('share') or 1}:{tenant}" if tenant else ""

    @property
    def feeds(self) -> str:
        """What other requests feed to it; "" = nothing."""
        return self.extra("feed")

    @property
    def window_ms(self) -> int | None:
        """How long after its beginning an ended request keeps the id; None = for good."""
        unique = self.extra("unique")
        return int(unique.partition(":")[0]) if unique else None

    def extra(self, name: str) -> str:
        """Returns one of the extras; "" if it has none of this name."""
        for line in self.extras.split("\n"):
            found, _, value = line.partition("=")
            if found == name:
                return value
        return ""


@dataclass(slots=True)
class Sub:
    """One sub-request: fresh, leased, waiting for its time, done, dead or cancelled."""

    index: int
    stamp: int  # ms; with the index its place in the stream
    body: bytes
    state: str = "fresh"
    spent: int = 0  # attempts that were charged
    permit: int = -1  # the permit that holds it
    due: int = 0  # when it may run again
    reason: str = ""  # why it is dead
    grave: bytes = b""  # the name of the dead one, which Redis chooses
    is_dropped: bool = False  # dead, and its body is not kept any more

    @property
    def id(self) -> bytes:
        """The id by which the holder names it."""
        return b"%d-%d" % (self.stamp, self.index)

    @property
    def attempt(self) -> int:
        """The number of the delivery that is under way."""
        return self.spent + 1


@dataclass(slots=True)
class Permit:
    """A permit for one worker: parked, queued (one token is on its way) or leased."""

    k: int
    state: str = "parked"
    g: int = 0
    lane: int = 0
    since: int = 0
    due: int = 0
    asleep: bool = False  # queued for a time to come, and not woken since
    fence: int = 0
    op: str = ""
    worker: str = ""
    started: str = ""
    deadline: int = 0
    settled: int = 0  # the last fence that its holder returned
    is_shared: bool = False  # one of several leases of the same worker

    def is_held_by(self, fence: int, op: str) -> bool:
        """Returns whether this proves the lease."""
        return self.state == "held" and (self.fence, self.op) == (fence, op)

    def park(self) -> None:
        """Parks it: no worker holds it and no token is on its way."""
        self.state, self.asleep = "parked", False


class Result(NamedTuple):
    """What a reader of results receives about one sub-request."""

    number: int
    status: str
    attempt: int
    worker: str
    body: bytes


def place(grave: bytes) -> tuple[int, ...]:
    """Where a dead one is in the order of the others."""
    return tuple(map(int, grave.split(b"-")))
