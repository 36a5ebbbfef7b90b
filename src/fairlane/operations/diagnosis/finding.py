"""What a walk through Redis found, and how it is repaired; one failed repair stops no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.protocol.steps import Call, Command, Operation


@dataclass(slots=True)
class Finding:
    """One damage: `kind` is a word or two, `name` a request or a key, `what` a sentence's rest.

    `remedy` is what a repair does about it, or a person if no repair can. A harmless one is only
    counted: it costs nothing.
    """

    kind: str
    name: str
    what: str
    remedy: str
    is_repaired: bool = False
    is_by_hand: bool = False
    is_harmless: bool = False

    @property
    def is_left(self) -> bool:
        """True if it still needs a repair or a person."""
        return not self.is_repaired and not self.is_harmless


class FindingCounts:
    """Collects the findings of one page."""

    def __init__(self, repair: bool) -> None:
        self.repair = repair
        self.findings: list[Finding] = []

    def add(self, kind: str, name: str, what: str, remedy: str) -> Finding:
        """A damage."""
        found = Finding(kind, name, what, remedy)
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


def apply_repair(found: Finding, how: Command | Call | Operation[Any]) -> Operation[None]:
    """Runs a repair; a refusal becomes part of the finding. Raises RedisUnreachable."""
    try:
        if isinstance(how, (Command, Call)):
            yield how
        else:
            yield from how
    except RedisUnreachable:
        raise
    except FairlaneError as error:
        found.remedy, found.is_by_hand = f"it could not be repaired: {error}", True
        return
    found.is_repaired = True
