"""Explores a queue of several shards, which change while a request is under way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations import shards
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import LANES, QUEUE, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SHARDS = (1, 2)


def spreader(*numbers: int, until_moved: bool = False) -> Role:
    """Sets the queue's shards, none = its own lanes; then moves the requests, `until_moved`."""
    return Role("s", "spreader", (("shards", numbers), ("until_moved", until_moved)))


@kind("spreader", again=True)
async def _spread(role: Role, _: tuple[Any, ...]) -> Any:
    await shards.set_shards(QUEUE, shards.Shards(role.option("shards")))
    while role.option("until_moved") and (await shards.read_shards(QUEUE)).left.numbers:
        await shards.move(QUEUE)


class Spread(Fairlane):
    """Tokens are in the shards that workers read from `conf`. The leader moves them, too."""

    tolerated = Fairlane.tolerated | {"RedisUnreachable"}

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the keys of two more shards."""
        super().__init__(root, in_stream=in_stream)
        self.known = {what: reply for what, reply in self.known.items() if what[0] != b"HMGET"}
        for shard in SHARDS:
            self._add(f"delayed {shard}", keys.delayed(QUEUE, shard))
            for lane in LANES:
                self.add_lane(keys.lanes(QUEUE, shard)[lane])

    def pops(self, facts: Facts, most: int) -> Iterator[tuple[bytes, Command]]:
        """Yields the most urgent lane of each shard that holds a token."""
        for shard in served(facts):
            here = [lane for lane in facts.lanes if lane in keys.lanes(QUEUE, shard)]
            if here:
                yield here[0], Command(b"RPOP", here[0], most)

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds the move of requests that use shards which are left."""
        yield from super().errands(facts, now)
        if facts.conf.get(b"left"):
            yield "keeper moves", ("change_shards",)

    def due_shards(self, facts: Facts) -> tuple[int, ...]:
        """Returns the shards where tokens may be due."""
        return served(facts)


class OneMoves(Spread):
    """If only one process moves requests, no shard is forgotten while a request uses it."""

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Checks that workers serve the shards that the request uses."""
        wrong = super().wrong_stand(facts)
        used = set(shards.Shards.of(facts.fields.get(b"shards", b"")).numbers)
        if facts.state and not facts.is_over and used - set(served(facts)):
            wrong += (f"the request's shards are {used}, workers look at {served(facts)}",)
        return wrong

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Leaves the leader's move out."""
        for label, argument in super().errands(facts, now):
            if argument != ("change_shards",):
                yield label, argument


def served(facts: Facts) -> tuple[int, ...]:
    """Returns the shards that workers serve."""
    return shards.served(facts.conf.get(b"shards", b""), facts.conf.get(b"left", b""))
