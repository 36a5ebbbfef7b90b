"""Explores two producers of one id with `on_duplicate`: the id always has one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.explore.machinery.protocol import Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.explore.machinery.actors import Actor


class Uniques(Fairlane):
    """A request replaces another one only after that has ended and is in the log."""

    tolerated = Fairlane.tolerated | {"RequestExists", "RequestLost"}

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        """Checks that the former request of the id has ended, and that its end is in the log."""
        if not before.state or after.life == before.life:
            return super().wrong_move(before, after)
        wrong = []
        if not before.is_over:
            wrong.append(f"the request was {before.state!r}, and another one has its id")
        if not before.logged:
            wrong.append("another request has the id, and the ending is not in the log")
        if after.held or after.outcomes:
            wrong.append("a new request begins with what the former one left")
        return tuple(wrong)

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks that the request belongs to one of the producers when all have returned.

        One that died may have submitted its own.
        """
        wrong = super().wrong_actors(facts, actors)
        producers = [actor for actor in actors if actor.role.is_producer]
        totals = [actor.result for actor in producers]
        returned = all(actor.ends for actor in producers) and None not in totals
        if returned and facts.number(b"total") not in totals:
            wrong += (f"submitted {totals}, stored {facts.number(b'total')}",)
        return wrong

    def _wrong_submission(self, facts: Facts, actor: Actor) -> Iterator[str]:
        """Accepts that another producer has replaced the request since."""
        name = f"{actor.role.name} returned normally"
        if not facts.state:
            yield f"{name}, and there is no request"
        if facts.state and not facts.is_over and not facts.active:
            yield f"{name}, and the request is not in active"


class Replaces(Uniques):
    """Without a crash, a replaced request has a successor once all producers have returned."""

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        wrong = super().wrong_actors(facts, actors)
        producers = [actor for actor in actors if actor.role.is_producer]
        returned = all(actor.ends and actor.result is not None for actor in producers)
        if returned and facts.is_undone:
            wrong += ("all producers returned normally, and the request is cancelled",)
        return wrong
