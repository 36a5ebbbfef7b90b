"""The three requests of the demo: their files, priorities and limits."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sources import sources, spread
from table import Row

if TYPE_CHECKING:
    from fairlane import Progress, Queue, Request
    from fairlane.records import Result

SOME = ("email", "http", "logging", "multiprocessing", "unittest", "urllib", "xml")


@dataclass
class DemoRequest:
    """Holds one request, from the plan to its results."""

    name: str
    priority: int
    limit: int
    paths: list[str]
    request: Request | None = None
    submitted: float = 0.0
    progress: Progress | None = None
    results: list[Result] = field(default_factory=list)

    def submit(self, queue: Queue) -> None:
        """Submits one sub-request for each file."""
        self.submitted = time.time()
        self.request = queue.submit_request(
            self.paths,
            priority=self.priority,
            limit=self.limit,
            id=f"{self.name}-{secrets.token_hex(3)}",
        )
        self.look()

    def look(self) -> None:
        """Reads the progress, unless the request has ended."""
        if self.request and not self.ended:
            self.progress = self.request.progress()

    @property
    def ended(self) -> bool:
        return self.progress is not None and self.progress.ended

    @property
    def share(self) -> float:
        """Returns how much of it is settled, 0 to 1."""
        progress = self.progress
        return (
            1 - progress.left / progress.total if progress and progress.total else float(self.ended)
        )

    def row(self) -> Row:
        """Returns its line of the closing table."""
        assert self.request is not None
        return Row.of(self.request.id, self.priority, self.limit, self.submitted, self.results)


def plan(most: int | None) -> tuple[DemoRequest, DemoRequest, DemoRequest]:
    """Returns bulk, middle and urgent; a small corpus makes all of them small."""
    quarter, eighth = (None, None) if most is None else (max(1, most // 4), max(1, most // 8))
    everything = spread(sources(), most)
    packages = spread(sources(*SOME), quarter)
    asyncio_files = spread(sources("asyncio"), eighth)
    return (
        DemoRequest("bulk", priority=50, limit=3, paths=everything),
        DemoRequest("middle", priority=5, limit=2, paths=packages),
        DemoRequest("urgent", priority=0, limit=3, paths=asyncio_files),
    )
