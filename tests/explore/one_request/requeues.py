"""Explores the requeue of dead sub-requests: exactly one request may run each of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from fairlane.model import DeadChoice
from fairlane.operations import dead_letters
from tests.explore.machinery.actors import FAILED, Role, kind
from tests.explore.machinery.protocol import REQUEST, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.actors import Actor


def reviver(name: str, *indexes: int) -> Role:
    """Requeues the dead sub-requests with these indexes; without any, all of them."""
    return Role(name, "reviver", (("indexes", indexes),))


@kind("reviver")
def _revive(role: Role, _: tuple[Any, ...]) -> Operation[Any]:
    return dead_letters.requeue_dead(REQUEST, DeadChoice(indexes=role.option("indexes") or None))


class Requeues(Fairlane):
    """A request that has ended with dead sub-requests; body n is the one of index n."""

    tolerated = frozenset({"DeadNotFound", "RequestExists", "RequestEnded", "RequestLost"})

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Checks that each dead sub-request is kept, or is in exactly one other request."""
        if not facts.is_over or not facts.logged:
            return ()  # it is still on its way to where the requeue begins
        wrong = []
        moved = Counter(body for other in _living(facts) for body in other.bodies)
        gone = set(self.dead_before(facts)) - set(facts.dead_ones) - set(moved)
        wrong += [f"sub-request {body.decode()} is in no request" for body in sorted(gone)]
        wrong += [
            f"sub-request {body.decode()} runs in {count} requests"
            for body, count in sorted(moved.items())
            if count > 1
        ]
        return tuple(wrong)

    @staticmethod
    def dead_before(facts: Facts) -> Iterator[bytes]:
        """Returns the indexes of those that had died when the request ended, by its results."""
        for head in facts.outcomes:
            index, status, *_ = head.split(b":")
            if status != b"done":
                yield index

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks that the request which a call names is there, and is in `active`."""
        wrong = []
        for actor in actors:
            if actor.result is None or actor.role.kind != "reviver":
                continue
            name, count = actor.result
            if name != REQUEST:
                problem = _wrong_request(facts.others.get(name), count)
            else:
                problem = f"{count} wait in the ended request" if count else ""
            wrong += [f"{actor.role.name}: {problem}"] if problem else []
        return tuple(wrong)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if no call is under way, and whatever is in `active` is there."""
        if not all(actor.ends for actor in actors):
            return False
        is_whole = all(
            bool(other.active) == (bool(other.state) and not other.is_over)
            for other in facts.others.values()
        )
        refused = any(actor.step is FAILED for actor in actors)
        is_copied = set(facts.dead_ones) & {
            body for other in _living(facts) for body in other.bodies
        }
        return is_whole and (refused or not is_copied or any(actor.is_over for actor in actors))


def _wrong_request(other: Facts | None, count: int) -> str:
    """Returns what is wrong with the request that must run so many."""
    if other is None or not other.state or other.is_undone:
        return "the request that runs them is not there"
    if other.number(b"total") != count:
        return f"{count} were to run, and it has another number"
    return "" if other.is_over or other.active else "the request that runs them is not in active"


def _living(facts: Facts) -> Iterator[Facts]:
    """Returns the requests that run some of them."""
    for other in facts.others.values():
        if other.state and other.state not in {b"cancelling", b"cancelled"}:
            yield other
