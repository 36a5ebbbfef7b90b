"""What a look through Redis found, and how it asks and mends without stopping at one bad key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import FairlaneError, RedisUnreachable
from ..steps import Batch, Call, Command, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOGETHER = 100  # steps of one round trip; after an error so many are asked one by one


@dataclass(slots=True)
class Finding:
    """One damage: `kind` is a word or two, `name` a request or a key, `what` a sentence's rest.

    `mend` is what a repair does about it, or a person where a repair can't. A harmless one is only
    counted: it costs nothing.
    """

    kind: str
    name: str
    what: str
    mend: str
    is_repaired: bool = False
    is_by_hand: bool = False
    is_harmless: bool = False

    @property
    def is_left(self) -> bool:
        """True when somebody still has to do something about it."""
        return not self.is_repaired and not self.is_harmless


class Tally:
    """Collects the findings of one page."""

    def __init__(self, repair: bool) -> None:
        self.repair = repair
        self.findings: list[Finding] = []

    def add(self, kind: str, name: str, what: str, mend: str) -> Finding:
        """A damage."""
        found = Finding(kind, name, what, mend)
        self.findings.append(found)
        return found

    def unreadable(self, name: str, error: FairlaneError) -> None:
        """A request that no script can read; a repair can't either."""
        self.add(
            "unreadable", name, f"can't be read: {error}", "look at its keys"
        ).is_by_hand = True

    def note(self, kind: str, name: str, what: str) -> None:
        """Something harmless."""
        self.findings.append(Finding(kind, name, what, "", is_harmless=True))


def mend(found: Finding, how: Command | Call | Operation[Any]) -> Operation[None]:
    """Mends; a refusal is told with the finding. Raises RedisUnreachable."""
    try:
        if isinstance(how, (Command, Call)):
            yield how
        else:
            yield from how
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        found.mend, found.is_by_hand = f"it could not be repaired: {error}", True
        return
    found.is_repaired = True


def many(count: int, what: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def batch(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The replies, however many steps there are, also none."""
    replies: list[Any] = []
    for start in range(0, len(steps), _TOGETHER):
        replies += yield Batch(steps[start : start + _TOGETHER])
    return replies


def each(steps: Sequence[Command | Call]) -> Operation[list[Any]]:
    """The same with the error of a step as its reply. Raises RedisUnreachable."""
    replies: list[Any] = []
    for start in range(0, len(steps), _TOGETHER):
        some = steps[start : start + _TOGETHER]
        try:
            replies += yield Batch(some)
        except RedisUnreachable:
            raise
        except FairlaneError:
            for step in some:
                replies.append((yield from _one(step)))
    return replies


def _one(step: Command | Call) -> Operation[Any]:
    try:
        return (yield step)
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        return error
