"""Plain lists that processes share: a fan-out to two lists, and a forwarder to another list.

Nothing is lost, nothing is doubled, and a forwarder keeps the order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.operations import lists
from fairlane.operations.lists import Route, Standby, Tracking, fan_out
from fairlane.protocol import keys, lua
from fairlane.protocol.keys import Namespace
from fairlane.protocol.steps import Command
from tests.explore.machinery.actors import OPS, Role, kind
from tests.explore.machinery.explorer import Faults, System
from tests.explore.machinery.protocol import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.explore.machinery.actors import Actor

SOURCE, PENDING, FIRST, SECOND = ("{l}:in", "{l}:pending", "{l}:a", "{l}:b")
SENT = (b"one", b"two", b"one")  # equal messages, too; oldest first
SPACE = Namespace("{l}")
TRACKING = Tracking(SPACE, "1", timeout_s=10, expire_s=60)
LEASE_MS = 10_000

PUSHER = Role("publisher", "publisher")


def fanout(name: str, to: str = "all", *, tracks: bool = False) -> Role:
    """A fan-out that ends when no message is left."""
    return Role(name, "fan-out", (("to", to), ("tracks", tracks)))


def forwarder(name: str) -> Role:
    """A forwarder that ends when no message is left."""
    return Role(name, "forwarder")


@kind("publisher")
async def _publish(role: Role, _: tuple[Any, ...]) -> Any:
    await Command(b"LPUSH", keys.raw(SOURCE), *SENT)


@kind("fan-out")
async def _fan_out(role: Role, _: tuple[Any, ...]) -> Any:
    route = Route(SOURCE, PENDING, (FIRST, SECOND), role.option("to"))
    tracking = TRACKING if role.option("tracks") else None
    while await fan_out(route, 0.0, tracking) is not None:
        pass


@kind("forwarder")
async def _forward(role: Role, _: tuple[Any, ...]) -> Any:
    """What a Forwarder does in each turn, and at its end."""
    owner, landed = OPS.draw().decode(), None
    while True:
        found = await lists.next_forward(SOURCE, owner, LEASE_MS, owner, landed)
        landed = None
        if isinstance(found, Standby):
            continue
        if not found.messages:
            break
        landing = await lists.land(FIRST, found)
        assert landing.word == "ok", landing
        landed = found
    await lists.next_forward(SOURCE, owner, 0, owner)


class ListFacts(NamedTuple):
    """What the lists have, oldest first."""

    is_empty: bool
    waiting: tuple[bytes, ...]  # in the source, and in the list behind it
    first: tuple[bytes, ...]
    second: tuple[bytes, ...]
    tracked: tuple[bytes, ...]  # ids


class Lists(Protocol):
    """The keys of both; nothing of Fairlane's queues is there."""

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """`in_stream` means nothing here."""
        self.library = lua.Library(root or lua.library().root)
        self.keys = {
            "source": keys.raw(SOURCE),
            "behind": self.behind,
            "first": keys.raw(FIRST),
            "second": keys.raw(SECOND),
            "tracked": SPACE.messages,
        }

    @property
    @abstractmethod
    def behind(self) -> bytes:
        """Where a message waits that has left the source."""

    def adds(self, word: Any) -> bool:
        """All keys have one hash tag."""
        return isinstance(word, bytes) and word.startswith(b"{l}:")

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """As it is: a key has no names of its own."""
        return raw, repr(raw)

    def facts(self, said: Sequence[Any]) -> ListFacts:
        source, behind, first, second, tracked = (tuple(one or ()) for one in said[:5])
        return ListFacts(not any(said), (source + behind)[::-1], first[::-1], second[::-1], tracked)

    def pops(self, facts: Any, most: int) -> Iterator[tuple[bytes, Command]]:
        """No actor waits."""
        yield from ()

    def is_goal(self, facts: ListFacts, actors: Sequence[Actor]) -> bool:
        return not facts.waiting and all(actor.ends for actor in actors)

    def wrong_actors(self, facts: ListFacts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """One process that has ended is enough: no message is left then."""
        if facts.waiting and any(map(_has_ended, actors)):
            return (f"a process ended, and {facts.waiting} are left",)
        return ()


def _has_ended(actor: Actor) -> bool:
    return actor.ends and not actor.is_over and not actor.error


class FanOuts(Lists):
    """Each message is in the source, in the pending list, or in every list behind, once."""

    behind = keys.raw(PENDING)

    def wrong_stand(self, facts: ListFacts) -> tuple[str, ...]:
        wrong = []
        if not facts.is_empty and Counter(facts.waiting + facts.first) != Counter(SENT):
            wrong.append(f"sent {SENT}, there are {facts.waiting} and {facts.first}")
        if facts.first != facts.second:
            wrong.append(f"the lists differ: {facts.first}, {facts.second}")
        return tuple(wrong)


class TrackedFanOuts(FanOuts):
    """Each message that was handed over has one id."""

    def wrong_stand(self, facts: ListFacts) -> tuple[str, ...]:
        wrong = super().wrong_stand(facts)
        if len(set(facts.tracked)) != len(facts.first) or len(facts.tracked) != len(facts.first):
            wrong += (f"{facts.first} have the ids {facts.tracked}",)
        return wrong


class Shortest(Lists):
    """Each message is in one of the lists, and these are equally long."""

    behind = keys.raw(PENDING)

    def wrong_stand(self, facts: ListFacts) -> tuple[str, ...]:
        found = facts.waiting + facts.first + facts.second
        wrong = []
        if not facts.is_empty and Counter(found) != Counter(SENT):
            wrong.append(f"sent {SENT}, there are {found}")
        if abs(len(facts.first) - len(facts.second)) > 1:
            wrong.append(f"the lists are not equally long: {facts.first}, {facts.second}")
        return tuple(wrong)


class Forwards(Lists):
    """The target has the first messages in their order, once; the others wait in their order."""

    behind = keys.in_flight(SOURCE)

    def wrong_stand(self, facts: ListFacts) -> tuple[str, ...]:
        wrong = []
        landed, waiting = len(facts.first), len(facts.waiting)
        if facts.first != SENT[:landed]:
            wrong.append(f"sent {SENT}, the target has {facts.first}")
        if not facts.is_empty and facts.waiting != SENT[len(SENT) - waiting :]:
            wrong.append(f"sent {SENT}, there wait {facts.waiting}")
        if not facts.is_empty and landed + waiting < len(SENT):
            wrong.append(f"{landed} are in the target, and {waiting} wait")
        return tuple(wrong)


def _systems(
    name: str, protocol: type[Lists], roles: tuple[Role, ...], *faults: str
) -> Iterator[System]:
    """Yields one system for each fault; the messages are there before."""
    for fault in faults:
        yield System(
            f"{name}, {_WORDS[fault]}",
            roles,
            Faults(**{fault: 1}),
            before=(PUSHER,),
            protocol=protocol,
        )


_WORDS = {"crash": "a crash", "lost": "a lost reply", "ghost": "a late copy"}
_TRACKS = (fanout("f", tracks=True), fanout("g", tracks=True))
_BALANCES = (fanout("f", "shortest"), fanout("g", "shortest"))
LISTS = (
    *_systems("fan-out", FanOuts, (fanout("f"), fanout("g")), *_WORDS),
    *_systems("fan-out, tracked", TrackedFanOuts, _TRACKS, *_WORDS),
    *_systems("fan-out to the shortest", Shortest, _BALANCES, "crash", "ghost"),
    *_systems("forward", Forwards, (forwarder("f"), forwarder("g")), *_WORDS),
)
