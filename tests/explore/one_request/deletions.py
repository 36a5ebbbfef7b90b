"""Explores deletion: an ended request is deleted, its id is reused, each end is logged once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.operations.change import Change, apply, select_ids
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import REQUEST, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.explore.machinery.actors import Actor

DELETER = Role("e", "deleter")


@kind("deleter", again=True)
async def _delete(*_: Any) -> Any:
    selected = await select_ids(Change.delete(), [REQUEST])
    report = await apply(selected)
    for error in report.failed.values():
        raise error


class Deletions(Fairlane):
    """An end stays as it is, or the request is deleted; each later life has a later beginning."""

    tolerated = Fairlane.tolerated | {"RequestNotEnded", "RequestLost"}

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Compares no counts while the request is a marker, because a marker counts nothing."""
        if facts.state or not facts.fields:
            return super().wrong_stand(facts)
        left = [name for name in ("outcomes", "dead", "held", "bodies") if getattr(facts, name)]
        wrong = [f"the request is gone, and its {name} are left" for name in left]
        if b"lost" in dict(facts.log).values():
            wrong.append("the request is logged as lost")
        return tuple(wrong)

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        """Checks that a deleted request had ended, and that its end is in the log."""
        if not before.state or after.life == before.life:
            return super().wrong_move(before, after)
        wrong = []
        if not before.is_over:
            wrong.append(f"the request was {before.state!r}, and is gone")
        if not before.logged:
            wrong.append("the request is gone, and its ending is not in the log")
        if not set(before.log) <= set(after.log):
            wrong.append(f"endings are gone from the log: {before.log}, {after.log}")
        return tuple(wrong)

    def _wrong_submission(self, facts: Facts, actor: Actor) -> Iterator[str]:
        """Accepts a submission, too, if its request ended, was logged and then deleted."""
        if facts.state or not facts.log:
            yield from super()._wrong_submission(facts, actor)
