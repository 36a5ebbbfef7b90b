"""Explores a step of a flow that others feed: each result arrives once, and it ends after them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane.operations.hand_over import ARRAY, DONE, JSON_ARRAY, PLAIN, Feed
from fairlane.operations.submit import open_request
from fairlane.options import Policy
from fairlane.protocol import keys
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import REQUEST, Facts, Fairlane
from tests.explore.several_requests.groups import each, needs_audit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.explore.machinery.actors import Actor

ONE, TWO = ("a",), ("a", "b")


def fed_by(*sources: str, count: int = 1) -> Role:
    """Submits sources of so many sub-requests, and begins the request that they feed or join."""
    return Role("p", "feed producer", (("sources", sources), ("count", count)))


@kind("feed producer")
async def _produce(role: Role, _: tuple[Any, ...]) -> Any:
    sources, count = role.option("sources"), role.option("count")
    for source in sources:
        policy = Policy(limit=1, attempts=1, backoff_ms=(1000, 1000))
        opened = await open_request(source, policy, [b"%d" % index for index in range(count)])
        await opened.seal()
    joins = len(sources) > 1
    kind, wrap = (ARRAY, JSON_ARRAY) if joins else (DONE, PLAIN)
    feed = Feed(kind, sources, (False,) * len(sources), wrap, width=len(sources))
    policy = Policy(limit=1, attempts=1, backoff_ms=(1000, 1000), feed=feed.text)
    await open_request(REQUEST, policy, [])


class Feeds(Fairlane):
    """The request gets one sub-request for each result, or one for each pair of them."""

    count = 1  # of the sub-requests of each source
    joins = False  # dead ones, too, with the others; else they are left out

    def adds(self, word: Any) -> bool:
        """Accepts the keys of what is handed over, and of parts that wait to be joined, too."""
        if word == keys.fed(REQUEST):
            self._names.append(("bits", REQUEST))
            return True
        if word == keys.of_flow(REQUEST):
            self._names.append(("parts", REQUEST))
            return True
        return super().adds(word)

    def read(self, i: int, raw: Any) -> tuple[Any, str]:
        """Reads parts that wait as a hash."""
        if self._names[i][0] != "parts" or not raw:
            return super().read(i, raw)
        said = dict(sorted(zip(raw[::2], raw[1::2], strict=True)))
        return said, repr(said)

    def errands(self, facts: Facts, now: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Adds the leader's hand-over, and an audit of the tokens of each request."""
        yield from super().errands(facts, now)
        if needs_audit(facts, now):
            yield "keeper audits", ("audit",)
        if facts.state == b"active" and facts.number(b"open"):
            yield "keeper feeds", ("feed",)

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        """Checks that nothing is there twice, and nothing is missing at the end."""
        wrong = chain.from_iterable(super(Feeds, self).wrong_stand(one) for one in each(facts))
        total = facts.number(b"total")
        left_out = sum(one.number(b"dead") for one in facts.others.values()) * (not self.joins)
        more = [f"{total} of {self.count} are there"] if total > self.count else []
        if facts.is_over and total + left_out < self.count:
            more.append(f"it ended with {total} of {self.count}")
        if facts.state and facts.state != b"done" and facts.is_over:
            more.append(f"it is {facts.state!r}: {facts.fields.get(b'reason')!r}")
        return (*wrong, *more)

    def is_goal(self, facts: Facts, actors: Sequence[Actor]) -> bool:
        """Returns True if all requests have ended."""
        return all(one.is_over and bool(one.logged) and not one.active for one in each(facts))


class TwoResults(Feeds):
    """A source with two sub-requests."""

    count = 2


class Joins(Feeds):
    """Two sources that are joined."""

    joins = True
