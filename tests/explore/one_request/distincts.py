"""Explores a request that takes each key once; a body's key is whether its number is odd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from tests.explore.machinery.protocol import REQUEST, Facts, Fairlane

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def parity(body: bytes) -> bytes:
    """Returns the key of a body of the explorer."""
    return b"%d" % (int(body) % 2)


class Distincts(Fairlane):
    """Each key is there once, each other body is counted, and the set of ids ends with the seal."""

    def __init__(self, root: Path | None = None, *, in_stream: bool = False) -> None:
        """Adds the set of ids."""
        super().__init__(root, in_stream=in_stream)
        self._add("ids", keys.unique_ids(REQUEST))

    def facts(self, said: Sequence[Any]) -> Facts:
        """Adds the number of ids to the facts."""
        names = [name for name, _ in self._names]
        at = names.index("ids")
        return super().facts(said)._replace(extra=(len(said[at] or ()) if at < len(said) else 0,))

    def wrong_stand(self, facts: Facts) -> tuple[str, ...]:
        wrong = super().wrong_stand(facts)
        (ids,) = facts.extra
        total = facts.number(b"total")
        if not facts.state:
            return (*wrong, f"there is no request, and {ids} ids are left") if ids else wrong
        if total > 2:
            wrong += (f"{total} sub-requests have two keys",)
        if len({parity(body) for body in facts.bodies}) < len(facts.bodies):
            wrong += (f"two of {facts.bodies} have the same key",)
        if facts.number(b"open") and ids != total:
            wrong += (f"{total} sub-requests of an open request have {ids} ids",)
        if facts.state == b"done" and ids:
            wrong += (f"the request was sealed, and {ids} ids are left",)
        sent, chunks = total + facts.number(b"left_out"), facts.number(b"chunks")
        if sent != chunks + 1:  # the first chunk has two bodies, each other one
            wrong += (f"{sent} bodies of {chunks} chunks are accounted for",)
        return wrong
