"""Explores two requests that are created together: each is as safe as one created alone."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane import settings
from fairlane.errors import FairlaneError
from fairlane.operations.create import Digest, NewRequest, create
from fairlane.options import Policy
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import REQUEST, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.explore.machinery.actors import Actor

OTHER = "other"


def group_producer(name: str = "p", *, one_server: bool = False, other: str = OTHER) -> Role:
    """Creates two requests of one sub-request; `one_server`: one server has all keys."""
    return Role(name, "group producer", (("one_server", one_server), ("other", other)))


@kind("group producer")
async def _produce(role: Role, _: tuple[Any, ...]) -> Any:
    policy = Policy(limit=1, attempts=2, backoff_ms=(1000, 1000))
    group = []
    for request_id in (REQUEST, role.option("other")):
        digest = Digest(policy)
        digest.add([b"0"])
        group.append(NewRequest(request_id, policy, digest, [b"0"]))
    results = await create(group)
    for result in results:
        if isinstance(result, FairlaneError):
            raise result
    return [new.id for new in group]


class Groups(Fairlane):
    """The invariants of one request hold for each."""

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        wrong = super().wrong_stand
        return tuple(chain.from_iterable(wrong(one) for one in each(facts)))

    def wrong_move(self, before: Facts, after: Facts) -> tuple[str, ...]:
        wrong = super().wrong_move
        others = [(before.others.get(name), other) for name, other in after.others.items()]
        pairs = [(before, after), *others]
        return tuple(chain.from_iterable(wrong(old, new) for old, new in pairs if old))

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        """Checks that a group whose creation returned normally is there completely."""
        requests = {REQUEST: facts, **facts.others}
        return super().wrong_actors(facts, actors) + tuple(
            wrong
            for actor in actors
            if actor.role.kind == "group producer" and actor.result is not None
            for request_id in actor.result
            for wrong in _wrong_request(request_id, requests.get(request_id))
        )

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if every request reached its goal, and no creation is under way."""
        is_reached = super().is_goal
        ends = all(actor.ends for actor in actors if actor.role.kind == "group producer")
        return ends and all(is_reached(one, actors) for one in each(facts))


def needs_audit(facts: Facts, now: int) -> bool:
    """Returns True if an audit is of use, and not for the first request: see Fairlane.errands."""
    own = [one.queued for one in each(facts) if one.queued and one.active]
    is_away = not facts.lanes and not facts.due and facts.look
    is_asked = facts.active and 0 < facts.queued < now - settings.TOKEN_GRACE_MS
    return bool(is_away and not is_asked and own and min(own) < now - settings.TOKEN_GRACE_MS)


def each(facts: Facts) -> Iterator[Facts]:
    """Yields the facts of every request."""
    yield facts
    yield from facts.others.values()


def _wrong_request(name: str, facts: Facts | None) -> Iterator[str]:
    if facts is None or not facts.state:
        yield f"the creation returned normally, and there is no request {name}"
    elif facts.is_undone:
        yield f"the creation returned normally, and request {name} is {facts.state!r}"
    elif not facts.is_over and not facts.active:
        yield f"the creation returned normally, and request {name} is not in active"
