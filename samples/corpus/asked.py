"""The three requests of the demo: what is asked, how urgent it is, and when."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sources import sources, spread
from table import Row

if TYPE_CHECKING:
    from fairlane import Progress, Queue, Request
    from fairlane.model import Result

SOME = ("email", "http", "logging", "multiprocessing", "unittest", "urllib", "xml")


@dataclass
class Asked:
    """One request, from the plan to its results."""

    name: str
    priority: int
    limit: int
    paths: list[str]
    request: Request | None = None
    submitted: float = 0.0
    progress: Progress | None = None
    results: list[Result] = field(default_factory=list)

    def submit(self, queue: Queue) -> None:
        """One sub-request for each file."""
        self.submitted = time.time()
        self.request = queue.submit_request(
            self.paths,
            priority=self.priority,
            limit=self.limit,
            id=f"{self.name}-{secrets.token_hex(3)}",
        )
        self.look()

    def look(self) -> None:
        """Asks how far it is; an ended one is not asked again."""
        if self.request and not self.ended:
            self.progress = self.request.progress()

    @property
    def ended(self) -> bool:
        return self.progress is not None and self.progress.ended

    @property
    def share(self) -> float:
        """How much of it is settled, 0 to 1."""
        now = self.progress
        return 1 - now.left / now.total if now and now.total else float(self.ended)

    def row(self) -> Row:
        """Its line of the closing table."""
        assert self.request is not None
        return Row.of(self.request.id, self.priority, self.limit, self.submitted, self.results)


def plan(most: int | None) -> tuple[Asked, Asked, Asked]:
    """Bulk, middle and urgent; a small corpus makes all of them small."""
    quarter, eighth = (None, None) if most is None else (max(1, most // 4), max(1, most // 8))
    everything = spread(sources(), most)
    some = spread(sources(*SOME), quarter)
    loops = spread(sources("asyncio"), eighth)
    return (
        Asked("bulk", priority=50, limit=3, paths=everything),
        Asked("middle", priority=5, limit=2, paths=some),
        Asked("urgent", priority=0, limit=3, paths=loops),
    )
