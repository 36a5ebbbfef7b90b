"""The small systems that are explored: who acts, and which faults may happen."""

from __future__ import annotations

from .actors import Role
from .explorer import System


def producer(chunks: int, limit: int, attempts: int = 2) -> Role:
    """Submits so many chunks of one sub-request each."""
    return Role("p", "producer", (("chunks", chunks), ("limit", limit), ("attempts", attempts)))


def worker(number: int, most: int = 1) -> Role:
    """Takes slices of at most so many."""
    return Role(f"w:{number}", "worker", (("slice", most),))


def faults(crash: int = 0, lost: int = 0, ghost: int = 0) -> tuple[tuple[str, int], ...]:
    """How many of each may happen on one way."""
    return (("crash", crash), ("lost", lost), ("ghost", ghost))


CANCEL = Role("c", "canceller")
ALL = ("all done", "first fails", "stops", "in parts")

SMALL = (
    System("one worker", (producer(1, 1), worker(1))),
    System("an empty request", (producer(0, 1),), faults(crash=1, lost=1)),
)
LARGE = (
    System("a crash", (producer(1, 1), worker(1)), faults(crash=1)),
    System("a lost reply", (producer(1, 1), worker(1)), faults(lost=1)),
    System("a late copy", (producer(1, 1), worker(1)), faults(ghost=1)),
    System("a failing handler", (producer(1, 1), worker(1)), faults(), ALL[:2]),
    System("two workers", (producer(1, 1), worker(1), worker(2))),
    System("cancel", (producer(1, 1), worker(1), CANCEL)),
    System("open", (producer(2, 1), worker(1, 2)), faults(), ALL),
    System("open, crash", (producer(2, 1), worker(1)), faults(crash=1)),
)
BY_NAME = {system.name: system for system in (*SMALL, *LARGE)}
