"""Explores a durable request on a primary with one replica, and a failover to that replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations import completion
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import REQUEST, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.actors import Actor

WAITER = Role("a", "waiter")


@kind("waiter", again=True)
def _wait(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return completion.wait(REQUEST, lambda: 0.0, None)


class Durable(Fairlane):
    """What was confirmed is there, also after a failover."""

    tolerated = Fairlane.tolerated | {"NotDurable", "RequestLost", "RequestExists"}
    goes_back = True  # fences (then the ops differ), a place in `active`, an end that was logged

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks, too, that an end which an actor saw stays."""
        wrong = super().wrong_actors(facts, actors)
        for actor in actors:
            if actor.role is WAITER and actor.result and actor.result != facts.state.decode():
                wrong += (f"it ended as {actor.result}, and is {facts.state.decode()!r}",)
        return wrong

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds the hourly walk to the errands."""
        yield from super().errands(facts, now)
        if facts.state and not facts.active and not (facts.is_over and facts.logged):
            yield "keeper walks", ("walk",)
