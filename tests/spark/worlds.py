"""Makes requests and results without workers, so that every number in them is known."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from fairlane.model import Verdict, result_head
from fairlane.operations import lease, tokens
from fairlane.queue import Queue
from tests.support.scripts.requests import insert, once, take_slice

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from fairlane.drivers.sync import SyncDriver


class World:
    """A queue with one worker, which is this process."""

    def __init__(self, driver: SyncDriver, queue: str = "req") -> None:
        self.driver, self.queue = driver, Queue(driver, queue)

    def submit(self, request_id: str, count: int, **options: Any) -> None:
        """Submits a request whose bodies are its indexes."""
        bodies = (b"%d" % n for n in range(count))
        self.queue.submit_request(bodies, id=request_id, **options)

    def work_off(self, dead: Collection[int] = (), most: int = 1000, slices: int = 10**9) -> int:
        """Takes up to `slices` slices; returns how many sub-requests they held.

        `dead` are indexes that are rejected; every other one takes 1.5 ms.
        """
        count = 0
        for _ in itertools.repeat(None, slices):
            held = take_slice(self.driver, self.queue.name, most)
            if held is None:
                break
            count += len(held.entries)
            self._settle(held, dead)
        return count

    def _settle(self, held: Any, dead: Collection[int]) -> None:
        ids, pairs, verdicts = [], [], []
        for entry_id, (_, body) in held.entries:
            index = entry_id.rpartition(b"-")[2]
            if int(index) in dead:
                head = result_head(index, b"x", held.attempt, 2, 0)
                verdicts.append(Verdict(entry_id, "dead", 0, head, "it is rejected"))
                continue
            ids.append(entry_id)
            pairs += [result_head(index, b"d", held.attempt, 2, 1500), b"done " + body]
        reply = self.driver.run(once(lease.complete(held, ids, pairs, verdicts, keep=False)))
        if reply[0] == b"ended":
            self.driver.run(once(tokens.retire(self.queue.name, held.request_id, reply[1])))
        else:
            insert(self.driver, self.queue.name, held.request_id, reply[2])


def forget_commit(checkpoint: Path) -> None:
    """Leaves a query's checkpoint as if Spark had died before it noted the last batch."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()
