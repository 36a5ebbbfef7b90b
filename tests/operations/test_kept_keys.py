"""Tests which keys stay in Redis after all requests of a queue have ended and were deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fairlane import Change, Child, Flow, settings
from fairlane.operations.flow_hand_over import hand_over
from fairlane.operations.schedules import fire
from fairlane.operations.webhooks import add_webhook, begin_round, end_rounds, remove_webhook
from fairlane.operations.workers import do_chore, heartbeat, register_worker, unregister_worker
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.topics import Topic
from tests.support.scripts.requests import once
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from fairlane.protocol.steps import Arg
    from fairlane.queue import Queue

ONE = Flow("one").step("only", retain=0)
REWARDS = (
    Flow("rewards")
    .step("check", on_dead="undo")
    .children("discord", Child("twitter"))
    .step("report")
    .compensate("undo")
)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "urgent": {"priority": 0, "deadline": 60, "time_limit": 60, "tags": ["a"]},
    "rated": {"rate": "1000/s"},
    "keyed": {"rate": "1000/s", "rate_key": "api"},
    "unique": {"on_duplicate": "keep", "window": 3600},
    "delayed": {"delay": 0.001},
    "tenant": {"tenant": "t", "share": 3, "ageing": 60},
    "after": {"after": ["plain"]},
    "kept not": {"retain": 0},
}
EXPIRED = -2  # what PTTL returns for no key
# docs/reference/keys.md names these, and what bounds them.
OF_QUEUE = {b"{req}:completed", b"{req}:conf", b"{req}:logged", b"{req}:stats", b"{req}:tenants"}


def command(queue: Queue, *words: Arg) -> Any:
    return queue.driver.run(once(Command(*words)))


def finish_all(queue: Queue) -> None:
    """Takes and settles, and acts as a leader, until nothing of the queue is unfinished."""

    def is_finished() -> bool:
        for one in queue.take(100, visible_for=60):
            one.done(b"result")
        unfinished = command(queue, b"ZRANGE", keys.active(queue.name), 0, -1)
        for one in unfinished:
            queue.driver.run(hand_over(one.decode()))
        return not unfinished

    wait_until(is_finished)


def use_all(queue: Queue, large: bytes = b"x" * 2000) -> None:
    """Submits and finishes a request of each kind, two flows, and a schedule's tick."""
    queue.set_max_waiting(1000)
    queue.set_rate("1000/s")
    for name, options in OPTIONS.items():
        queue.submit_request([large, b"b"], id=name.replace(" ", "-"), **options)
    queue.submit_many([[b"a"], [b"b"]])
    with queue.open(id="open") as request:
        request.add(b"a")
    queue.post(b"a")
    queue.submit_flow(ONE, [b"a"], id="one").shared["n"] = 1
    queue.submit_flow(REWARDS, [b"a", b"b"], id="two").shared["n"] = 1
    queue.schedules.add("daily", cron="0 7 * * *", bodies=[b"a"])
    command(queue, b"ZADD", keys.schedules(queue.name)[1], b"XX", 1, b"daily")
    assert queue.driver.run(fire(queue.name)).requests == 1
    queue.driver.run(do_chore(queue.name, "after", "end:"))
    finish_all(queue)


def test_the_end_leaves_what_is_kept(queue: Queue, redis_client: Any):
    use_all(queue)
    for key in redis_client.scan_iter():
        kept = re.fullmatch(rb"(req|out|rate):\{([\w.:/-]+)\}", key)
        if kept and kept[2] in {b"kept-not", b"one.1"}:
            assert kept[1] == b"req"
            assert redis_client.pttl(key) <= settings.LEAST_TOMBSTONE_MS
        elif kept:
            ttl = redis_client.pttl(key)
            assert ttl == EXPIRED or 0 <= ttl <= settings.FED_RETAIN_MS
        else:
            assert key in OF_QUEUE | {
                *(b"{req}:schedules", b"{req}:ticks", b"{req}:firing", b"{req}:load")
            }


def test_a_deletion_leaves_markers_that_expire_and_what_is_bounded(queue: Queue, redis_client: Any):
    use_all(queue)
    with Topic(queue.driver, "news") as topic:
        topic.subscribe("a")
        topic.publish(b"m")
        assert topic.fetch("a")
        assert topic.delete()
        queue.schedules.remove("daily")
        queue.set_max_waiting(0)
        queue.set_rate(None)
        queue.change(queue.select(Change.delete(), everything=True))
        found = set(redis_client.scan_iter()) - OF_QUEUE
        left = {key: redis_client.pttl(key) for key in found}
        for key, ttl in left.items():
            assert re.match(rb"(req|rate|topic):\{", key), key
            assert ttl == EXPIRED or 0 <= ttl <= settings.LEAST_TOMBSTONE_MS, key
            assert (redis_client.memory_usage(key) or 0) < 300, key


def test_what_serves_a_queue_leaves_no_key(queue: Queue, redis_client: Any):
    run = queue.driver.run
    run(register_worker(queue.name, "w", "here", 1, "5"))
    run(heartbeat(queue.name, "w", "5", ""))
    run(add_webhook(queue.name, "hook", "https://example.com/x"))
    run(begin_round(queue.name, "server"))
    assert redis_client.exists("{req}:worker:w", "hooks:{req}") == 2
    run(end_rounds(queue.name, "server"))
    run(remove_webhook(queue.name, "hook"))
    run(unregister_worker(queue.name, "w", "5"))
    assert set(redis_client.scan_iter()) <= OF_QUEUE
