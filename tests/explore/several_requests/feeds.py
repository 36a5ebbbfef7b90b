"""Explores a step of a flow that others feed: each result arrives once, and it ends after them."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlane.operations.flow_branches import Choices, StepPlace
from fairlane.operations.flow_hand_over import (
    ARRAY,
    BRANCH,
    CHOSEN,
    DONE,
    JSON_ARRAY,
    LIST,
    PLAIN,
    Feed,
)
from fairlane.operations.submit import open_request
from fairlane.operations.tokens import follow_up
from fairlane.options import Policy
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import QUEUE, REQUEST, Facts, Fairlane
from tests.explore.machinery.replies import FANS
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
    feed = Feed(kind, sources, ("continue",) * len(sources), wrap, width=len(sources))
    policy = Policy(limit=1, attempts=1, backoff_ms=(1000, 1000), feed=feed.text)
    await open_request(REQUEST, policy, [])


# A request whose results choose: a step that they name, or children; and what joins such children.

CHILD = "x"  # the child that the joined results are of
ONCE = Policy(limit=1, attempts=1, backoff_ms=(1000, 1000))


def chosen_by(source: str, count: int = 1) -> Role:
    """Submits a source whose results choose, and begins the request that they choose, `x`."""
    return Role("p", "chooser", (("source", source), ("count", count)))


@kind("chooser")
async def _produce_chooser(role: Role, _: tuple[Any, ...]) -> Any:
    source, count = role.option("source"), role.option("count")
    opened = await open_request(source, ONCE, [b"%d" % index for index in range(count)])
    await opened.seal()
    most = 3 if source == FANS else 0
    choices = Choices(("x", "y"), "", most)
    kind, on_dead = CHOSEN if most else BRANCH, ("continue",)
    feed = Feed(kind, (source,), on_dead, width=most or 1, choices=choices)
    place = StepPlace("chosen", 2, 3, "x").text
    await open_request(REQUEST, replace(ONCE, feed=feed.text, flow=place), [])


def chosen_and_joined() -> Role:
    """Submits a parent and its three children, in one request, and begins the one that joins."""
    return Role("p", "joiner of chosen")


@kind("joiner of chosen")
async def _produce_joined(role: Role, _: tuple[Any, ...]) -> Any:
    opened = await open_request(FANS, ONCE, [b"0"])
    await opened.seal()
    child = await open_request(CHILD, ONCE, [])
    names = (*keys.request_keys(CHILD), keys.of_flow(CHILD), keys.fed(CHILD))
    handed = await scripts.hand_chosen(
        names, since="0-0", upto="1-0", open_ms=20_000, width=3, is_joined="1",
        choices=[b"0:2", b"2", b"0:0", b"0", b"0:1", b"1", b"0", b""],
    )  # fmt: skip
    await Batch(follow_up(QUEUE, (CHILD, handed)))
    child.chunks = handed.chunks
    await child.seal()
    feed = Feed(LIST, (FANS, CHILD), ("continue",) * 2, JSON_ARRAY, width=3)
    await open_request(REQUEST, replace(ONCE, feed=feed.text), [])


class Feeds(Fairlane):
    """The request gets one sub-request for each result, or one for each pair of them."""

    count = 1  # of the sub-requests of each source
    joins = False  # dead ones, too, with the others; else they are left out
    body = b""  # what each body must be; b"" = anything
    is_distinct = False  # its bodies differ

    def adds(self, word: Any) -> bool:
        """Accepts the keys of what is handed over, and of parts that wait to be joined, too."""
        for one in (REQUEST, CHILD):
            if word == keys.of_flow(one):
                self._names.append(("parts", one))
                return True
            if word == keys.fed(one):
                self._names.append(("bits", one))
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
        if self.is_distinct and len({*facts.bodies}) < len(facts.bodies):
            more.append(f"a body is there twice: {facts.bodies}")
        if self.body and any(one != self.body for one in facts.bodies):
            more.append(f"a body is {facts.bodies}")
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


class OneOfTwo(Feeds):
    """A branch: of two results one names it."""

    body = b"0"


class TwoOfThree(Feeds):
    """A child: of three children that a result chose, it runs two."""

    count = 2
    is_distinct = True


class JoinsChosen(Feeds):
    """The three children of one result make one body, in the order in which it chose them."""

    joins = True
    body = b'["","",""]'
