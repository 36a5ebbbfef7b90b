"""Explores the requeue of dead sub-requests of an ended request, which opens it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.model import DeadChoice
from fairlane.operations import dead_letters
from tests.explore.machinery.actors import FAILED, Role, kind
from tests.explore.machinery.protocol import REQUEST, Facts
from tests.explore.one_request.deletions import Deletions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.actors import Actor


def reviver(name: str, *indexes: int) -> Role:
    """Requeues the dead sub-requests with these indexes; without any, all of them."""
    return Role(name, "reviver", (("indexes", indexes),))


@kind("reviver")
def _revive(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return dead_letters.requeue_dead(REQUEST, DeadChoice(indexes=role.option("indexes") or None))


class Reopens(Deletions):
    """A request that has ended with dead sub-requests, and is opened again.

    Each opening ends once and is logged once.
    """

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if no requeue is under way, and the last end is logged."""
        revivers = [actor for actor in actors if actor.role.kind == "reviver"]
        if not all(actor.ends or actor.step is FAILED for actor in revivers):
            return False
        return super().is_goal(facts, actors)


class ReopensOnce(Reopens):
    """The same without crashes: a requeue opens the request once at most."""

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks that no requeue has opened the request twice."""
        wrong = super().wrong_actors(facts, actors)
        count = sum(actor.role.kind == "reviver" for actor in actors)
        if facts.reopened > count:
            wrong = (*wrong, f"opened {facts.reopened} times by {count} requeues")
        return wrong
