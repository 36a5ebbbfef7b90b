"""Explores programs that take sub-requests without a worker, and also maintain the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane.errors import ReceiptExpired
from fairlane.operations import take as settle
from fairlane.operations.take import Taker, take
from fairlane.protocol import keys
from tests.explore.machinery.actors import Role, kind
from tests.explore.machinery.protocol import QUEUE, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fairlane.operations.take import Receipt
    from fairlane.protocol.steps import Operation
    from tests.explore.machinery.actors import Actor

TERM_S = 20.0


class Settled(NamedTuple):
    """What a program concludes about the sub-request it took."""

    is_accepted: bool
    head: bytes  # index:status:attempt of the result that it wrote


def done(receipt: Receipt) -> Operation[None]:
    """Settles the sub-request with a result."""
    return settle.done(receipt, b"", 0)


def dead(receipt: Receipt) -> Operation[None]:
    """Settles the sub-request as dead."""
    return settle.dead(receipt, "never", 0)


def release(receipt: Receipt) -> Operation[None]:
    """Returns the sub-request to the queue."""
    return settle.release(receipt, 0)


async def extend_and_finish(receipt: Receipt) -> None:
    """Asks for more time, then settles with a result."""
    await settle.extend_term(receipt, TERM_S)
    await done(receipt)


def program(
    how: Callable[[Receipt], Operation[Any]], number: int = 8, *, once: bool = False
) -> Role:
    """Takes one sub-request after the other, or only `once`, and settles each this way."""
    return Role(f"t:{number}", "program", (("settle", how), ("once", once)))


@kind("program", rests_at="stand_in")
async def _take(role: Role, _: tuple[Any, ...]) -> Any:
    taker = Taker(QUEUE, lambda: role.name)
    while True:
        for delivery in await take(taker, 1, TERM_S):
            # Results that differ only in how long they waited would be as many more states.
            submitted = int(delivery.receipt.entry_id.partition(b"-")[0])
            receipt = replace(delivery.receipt, taken_ms=submitted)
            try:
                await role.option("settle")(receipt)
                is_accepted = True
            except ReceiptExpired:
                is_accepted = False
            if role.option("once"):
                return Settled(is_accepted, receipt.head(b"d", 0).rsplit(b":", 2)[0])


class Programs(Fairlane):
    """An accepted receipt has settled its sub-request, and a refused one has not."""

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the keys that a program reads besides."""
        super().__init__(root, in_stream=in_stream)
        self._add("ticks", keys.schedules(QUEUE)[1])
        self._add("firing", keys.firing(QUEUE))

    def wrong_actors(self, facts: Facts, actors: Sequence[Actor]) -> tuple[str, ...]:
        wrong = super().wrong_actors(facts, actors)
        for actor in actors:
            if actor.role.kind != "program" or actor.result is None:
                continue
            if actor.result.is_accepted != (actor.result.head in facts.outcomes):
                said = "accepted" if actor.result.is_accepted else "refused"
                wrong += (f"a receipt was {said}, and the results are {facts.outcomes}",)
        return wrong
