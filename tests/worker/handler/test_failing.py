"""Tests handlers that fail: retries after the backoff, finally a dead letter with its reason."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fairlane.protocol import keys
from tests.support.processes.workers import check_settled_once
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Folder, Workers


def test_what_fails_always_is_dead_with_its_traceback(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """It has `attempts`, each no sooner than its backoff allows; the request ends nevertheless."""
    request = queue.submit_request([b"the body"], attempts=3, backoff=(0.1, 10))
    workers.run("fail")
    failed = [(attempt, int(at) / 1e6) for attempt, at in folder.noted("failed")]
    assert [attempt for attempt, _ in failed] == ["1", "2", "3"]
    pauses = [later - earlier for (_, earlier), (_, later) in pairwise(failed)]
    assert pauses[0] >= 50, "half of 100 ms at least"
    assert pauses[1] >= 100, "half of 200 ms at least"
    (result,) = request.results()
    assert (result.status, result.attempt, result.body) == ("dead", 3, None)
    text = result.error or ""
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("LookupError: no such thing: the body\n")
    found: Any = redis_client.xrange(keys.request_keys(request.id)[7])
    ((_, dead),) = found
    assert (dead[b"reason"], dead[b"body"]) == (b"attempts", b"the body")
    assert redis_client.hget(keys.errors(request.id), dead[b"error"]) == text.encode()
    assert dead[b"worker"] == result.worker.encode()
    progress = request.progress()
    assert (progress.state, progress.done, progress.dead) == ("done", 0, 1)
    check_settled_once(request)


def test_a_retry_waits_among_the_delayed_and_is_promoted(
    queue: Queue, workers: Workers, folder: Folder, redis_client: redis.Redis
):
    """No unit waits with it: its token is in `delayed` until it is due."""
    request = queue.submit_request([b"x"], backoff=(0.4, 0.4))
    worker = workers.start("fail_first", until_idle=True)
    found: Any = wait_until(
        lambda: redis_client.zrange(keys.delayed("req"), 0, -1, withscores=True), why="it sleeps"
    )
    ((member, due),) = found
    assert member.startswith(b"5|" + request.id.encode() + b"#")
    assert worker.wait() == 0
    (first, second) = [int(at) / 1e6 for _, at in folder.noted("ran")]
    assert second - first >= 200
    assert due > 0
    assert redis_client.zcard(keys.delayed("req")) == 0
    assert [result.attempt for result in request.results()] == [2]


def test_others_go_on_while_a_retry_waits(queue: Queue, workers: Workers, folder: Folder):
    """Even with one permit, a failed sub-request delays no other."""
    request = queue.submit_request([b"bad", *[b"good"] * 20], limit=1, backoff=(1, 1))
    workers.run("fail_bad_first")
    ran = folder.noted("ran")
    assert [index for index, _ in ran[:1] + ran[-1:]] == ["0", "0"]
    assert len(ran) == 22
    assert [result.attempt for result in request.results()] == [2] + [1] * 20
    check_settled_once(request)
