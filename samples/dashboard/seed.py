"""Fills a queue with varied work to look at: see docs/how-to/watch/dashboard.md."""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING

from fairlane import Child, Flow, Queue

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "shop"
SCHEDULES = (
    ("daily-report", "0 7 * * mon-fri", "Europe/Berlin"),
    ("refresh-prices", "*/15 * * * *", "UTC"),
    ("close-accounts", "30 2 1 * *", "America/New_York"),
)


def bodies(
    count: int, ms: tuple[int, int], problems: dict[str, float] | None = None
) -> Iterator[bytes]:
    """Yields bodies that take `ms` from..to; `problems` has the share of each kind of failure."""
    chance = random.Random(count)
    names, weights = ["", *(problems or {})], [1.0, *(problems or {}).values()]
    for n in range(count):
        problem = chance.choices(names, weights)[0]
        yield json.dumps({"n": n, "ms": chance.randint(*ms), "problem": problem}).encode()


def seed(queue: Queue, scale: float = 1.0) -> None:
    """Submits the work: it lasts about a minute times `scale` with 16 concurrent calls."""

    def some(count: int) -> int:
        return max(3, round(count * scale))

    def submit(name: str, count: int, ms: tuple[int, int], **options: object) -> None:
        problems = options.pop("problems", None)
        queue.submit_request(bodies(some(count), ms, problems), id=name, **options)  # type: ignore[arg-type]

    submit("confirm-orders-4711", 12, (20, 60), priority=1, limit=4, tenant="acme", tags=["orders"])
    submit("invoices-october", 160, (30, 90), priority=10, limit=4, tenant="globex",
           tags=["billing"], problems={"address": 0.06, "price": 0.03}, attempts=2)  # fmt: skip
    submit("labels-warehouse-2", 120, (40, 120), priority=20, limit=3, tenant="acme",
           tags=["orders"], problems={"port": 0.12}, attempts=2)  # fmt: skip
    submit("thumbnails-catalog", 4_000, (60, 240), priority=40, limit=6, tenant="acme",
           tags=["nightly", "images"])  # fmt: skip
    submit("thumbnails-globex", 1_500, (60, 240), priority=40, limit=3, tenant="globex",
           tags=["nightly", "images"])  # fmt: skip
    submit("reindex-search", 2_500, (40, 160), priority=60, limit=4, tags=["nightly"])
    submit("newsletter-11-2026", 9_000, (20, 50), priority=70, limit=2, tenant="initech",
           tags=["mail"], rate="40/s")  # fmt: skip
    submit("archive-2024", 20_000, (80, 200), priority=90, limit=2, tags=["nightly"])
    submit("sync-crm", 600, (50, 90), priority=30, limit=2, tenant="initech", delay=900)
    submit("recount-stock", 800, (50, 90), priority=50, limit=2, after=["thumbnails-catalog"])
    submit("export-ledger", 500, (50, 90), priority=15, limit=2, tenant="globex", tags=["billing"])
    queue.request("export-ledger").pause()
    submit("wrong-upload", 50, (50, 90), priority=99)
    queue.request("wrong-upload").cancel("the wrong file")
    welcome = (
        Flow("welcome")
        .step("check", limit=2)
        .children(Child("invite", priority=3), Child("reward", limit=2))
        .step("greet", limit=2)
    )
    for n in range(3):
        queue.submit_flow(welcome, list(bodies(some(200 * (n + 1)), (60, 180))), id=f"welcome-{n}")
    for name, cron, tz in SCHEDULES:
        queue.schedules.add(name, cron=cron, tz=tz, bodies=list(bodies(3, (50, 90))), priority=30)
    queue.schedules.pause("close-accounts")


def main() -> int:
    with Queue.from_url(name=QUEUE) as queue:
        seed(queue, float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
    print(f"queue {QUEUE} is filled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
