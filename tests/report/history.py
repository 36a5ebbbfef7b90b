"""Makes an archive, as Parquet, of an invented queue in which every number is known.

Workers take the most urgent request that has a token left, in turns within a priority, and run its
slices one sub-request after the other.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fairlane.archive.archiver import Files
from fairlane.archive.manifest import Position, open_archive
from fairlane.archive.rows import SCHEMAS
from fairlane.model import outcome_of

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_795_200_000_000  # ms


def date_of(ms: float) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}"


@dataclass
class Asked:
    """A request of the history; `ran_ms` is about what each sub-request takes."""

    id: str
    priority: int
    limit: int
    count: int
    at_ms: int
    ran_ms: float
    dead: int = 0
    left: int = 0
    held: int = 0
    settled: int = 0
    ended_ms: int = 0


class History:
    """Plays the requests on so many workers."""

    def __init__(self, requests: list[Asked], workers: int, seed: int = 7) -> None:
        self.requests, self.random = requests, random.Random(seed)
        self.results: list[dict[str, Any]] = []
        self.dead: list[dict[str, Any]] = []
        self._play(workers)

    def _play(self, workers: int) -> None:
        free = [(float(T0), f"worker:{7000 + n}") for n in range(workers)]
        coming = sorted(self.requests, key=lambda one: one.at_ms)
        open_ones: list[Asked] = []
        ends: list[tuple[float, int, Asked]] = []  # slices that are leased until then
        while free:
            now, worker = heapq.heappop(free)
            while coming and coming[0].at_ms <= now:
                one = coming.pop(0)
                one.left = one.count
                open_ones.append(one)
            while ends and ends[0][0] <= now:
                heapq.heappop(ends)[2].held -= 1
            ready = [one for one in open_ones if one.left and one.held < one.limit]
            if not ready:
                later: list[float] = [coming[0].at_ms] if coming else []
                later += [ends[0][0]] if ends else []
                if later:
                    heapq.heappush(free, (max(now + 1, min(later)), worker))
                continue
            one = self.choose(ready)
            open_ones.remove(one)
            open_ones.append(one)  # its turn is over
            end = self._run(one, int(now), worker)
            one.held += 1
            heapq.heappush(ends, (end, id(one), one))
            heapq.heappush(free, (end + 1, worker))

    def expire(self, one: Asked, ended_ms: int) -> None:
        """Expires a request whose deadline passed before anything of it started."""
        one.ended_ms, one.dead = ended_ms, one.count
        row = {
            "request": one.id,
            "priority": one.priority,
            "reopened": 0,
            "submitted": one.at_ms * 1000,
            "worker": "-",
            "status": "dead",
            "attempt": 0,
            "waited_ms": ended_ms - one.at_ms,
            "ran_ms": 0.0,
            "total_ms": float(ended_ms - one.at_ms),
            "result": None,
            "error": None,
            "started": ended_ms * 1000,
            "settled": ended_ms * 1000,
            "date": date_of(ended_ms),
        }
        why = {"reason": "deadline", "error": "too late", "fingerprint": "d" * 10, "body": b""}
        died = {"died": row["settled"], **why}
        self.results += [{**row, "index": index} for index in range(one.count)]
        self.dead += [{**row, **died, "index": index} for index in range(one.count)]
        self.requests.append(one)

    def choose(self, ready: list[Asked]) -> Asked:
        """Returns the most urgent request; of several the one whose turn it is."""
        return min(ready, key=lambda one: one.priority)

    def _run(self, one: Asked, taken: int, worker: str) -> int:
        """Runs a slice of about 20 ms; returns when it is settled."""
        share = -(-one.left // one.limit)
        count = max(1, min(one.left, share, int(20 / one.ran_ms)))
        spent, rows = 0, []
        for _ in range(count):
            index = one.count - one.left
            one.left -= 1
            ran = max(1, int(self.random.lognormvariate(0, 0.5) * one.ran_ms * 1000))
            is_dead = index < one.dead
            rows.append(self._row(one, index, worker, taken, spent, ran, is_dead=is_dead))
            spent += ran
        settled = taken + -(-spent // 1000)
        shift = settled * 1000 - (taken * 1000 + spent)  # Redis computes it in the same way
        for row in rows:
            row["started"] += shift
            row["settled"] = settled * 1000
            row["date"] = date_of(settled)
        self.results += rows
        one.settled += count
        if one.settled == one.count:
            one.ended_ms = settled
        return settled

    def _row(
        self,
        one: Asked,
        index: int,
        worker: str,
        taken: int,
        spent: int,
        ran: int,
        *,
        is_dead: bool,
    ) -> dict[str, Any]:
        waited = taken - one.at_ms
        attempt = 1 + (self.random.random() < 0.02) + (4 if is_dead else 0)
        if is_dead:
            error = f"ValueError: no such page {index}" if index % 3 else "it is rejected"
            self.dead.append(
                {
                    "request": one.id,
                    "index": index,
                    "priority": one.priority,
                    "reopened": 0,
                    "submitted": one.at_ms * 1000,
                    "attempt": attempt,
                    "reason": "attempts" if index % 3 else "rejected",
                    "error": error,
                    "fingerprint": "f" * 10 if index % 3 else "e" * 10,
                    "worker": worker,
                    "body": b"",
                    "died": taken * 1000,
                    "date": date_of(taken),
                }
            )
        return {
            "request": one.id,
            "priority": one.priority,
            "reopened": 0,
            "submitted": one.at_ms * 1000,
            "index": index,
            "worker": worker,
            "status": "dead" if is_dead else "done",
            "attempt": attempt,
            "waited_ms": waited,
            "ran_ms": ran / 1000,
            "total_ms": waited + (spent + ran) / 1000,
            "result": None,
            "error": None,
            "started": taken * 1000 + spent,
        }

    def request_rows(self) -> list[dict[str, Any]]:
        """Returns the table `requests`."""
        ended = sorted(self.requests, key=lambda one: one.ended_ms)
        return [
            {
                "log_id": f"{one.ended_ms}-{at}",
                "id": one.id,
                "state": "done",
                "outcome": outcome_of("done", one.count - one.dead, one.dead),
                "limit": one.limit,
                "priority": one.priority,
                "total": one.count,
                "done": one.count - one.dead,
                "dead": one.dead,
                "cancelled": 0,
                "results": one.count,
                "reason": "",
                "reopened": 0,
                "submitted": one.at_ms * 1000,
                "ended": one.ended_ms * 1000,
                "logged": one.ended_ms * 1000,
                "date": date_of(one.ended_ms),
            }
            for at, one in enumerate(ended)
        ]

    def write(self, folder: Path) -> None:
        """Writes the archive, in one batch."""
        tables = {"requests": self.request_rows(), "results": self.results, "dead": self.dead}
        with open_archive(folder, "reader") as made:
            files = Files(made, "req")
            for name, rows in tables.items():
                for date in sorted({row["date"] for row in rows}):
                    some = [row for row in rows if row["date"] == date]
                    files.put(name, date, pa.Table.from_pylist(some, schema=SCHEMAS[name]))
            made.commit(T0, added=files.close("1-0", "2-0"), queues={"req": Position("2-0", 0)})


def example(minutes: int = 6, seed: int = 7) -> History:
    """Plays some minutes with four priorities; urgent requests are small and frequent."""
    dice = random.Random(seed)
    asked = []
    for n in range(minutes * 6):
        at = T0 + n * 10_000 + dice.randrange(3000)
        asked.append(Asked(f"click-{n}", 0, 4, dice.randrange(20, 120), at, 8))
    for n in range(minutes * 2):
        at = T0 + n * 30_000 + dice.randrange(9000)
        dead = 5 if n == 3 else 0
        asked.append(Asked(f"thumbnails-{n}", 5, 6, dice.randrange(600, 1900), at, 25, dead))
    asked += [
        Asked(f"mail-{n}", 20, 1 + n, 1300 + 600 * n, T0 + 15_000 + n * 9000, 60) for n in range(4)
    ]
    asked.append(Asked("nightly-index", 90, 8, 13_000 * minutes // 6, T0 + 2000, 45, 13))
    made = History(asked, workers=10, seed=seed)
    made.expire(Asked("too-late", 70, 1, 40, T0 + 4000, 0), T0 + 15_000)
    return made
