"""Tests workers at requests of order keys, by the handlers' own clocks, also beside kill -9."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from fairlane.protocol import keys
from tests.support.wait import PATIENCE_S
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers

pytestmark = ON_SINGLE


def test_each_call_starts_after_the_one_ahead_of_it_has_ended(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """One kills its process once; a call that ran beside it begins again, without an end."""
    sent = defaultdict[str, list[str]](list)
    requests = []
    for n in range(60):
        key = f"k{n % 4}"
        body = f"{key}:{n}" + ("!" if n == 13 else "")
        sent[key].append(body)
        requests.append(
            queue.submit_request([body], order_key=key, priority=99 - n, lease=1, attempts=20)
        )
    workers.run("note_interval", processes=2, concurrency=3)
    assert {request.wait(PATIENCE_S) for request in requests} == {"done"}
    seen = defaultdict[str, list[str]](list)
    running = defaultdict[str, set[str]](set)
    for what, body in folder.noted("interval"):
        key = body.partition(":")[0]
        assert running[key] <= {body}
        running[key] = {body} if what == "begin" else set()
        if what == "begin" and body not in seen[key]:
            seen[key].append(body)
    assert seen == sent
    assert not redis_client.exists(keys.of_limits("req")[3])
