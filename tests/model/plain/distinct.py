"""Models the keys of a request that takes each key once."""

from __future__ import annotations

from fairlane.common.xid import packed_ids


def key_of(body: bytes) -> bytes:
    """Returns the key of a body of the model: its last digit, so there are ten."""
    return body[-1:]


def with_ids(bodies: list[bytes]) -> list[bytes]:
    """Returns bodies as a call has them, followed by their ids."""
    return [*bodies, packed_ids(bodies, key_of)]


class Keys:
    """The keys that were taken; without `distinct` every body is taken."""

    def __init__(self, *, distinct: bool) -> None:
        self.distinct, self.left_out = distinct, 0
        self._known: set[bytes] = set()

    def new(self, bodies: list[bytes]) -> list[bytes]:
        """Returns the bodies whose key is new, and counts the others."""
        if not self.distinct:
            return bodies
        found = []
        for body in bodies:
            if key_of(body) not in self._known:
                self._known.add(key_of(body))
                found.append(body)
        self.left_out += len(bodies) - len(found)
        return found
