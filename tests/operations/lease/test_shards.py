"""Tests a queue of several shards: where tokens go, how requests move, when shards end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import FairlaneError, InvalidArgument, NodeAway, RedisUnfit, RedisUnreachable
from fairlane.operations import audit, shards, workers
from fairlane.operations.doctor import Walk
from fairlane.operations.shards import ShardLayout, Shards
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import once, work_off

if TYPE_CHECKING:
    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.operations.check_result import Finding
    from fairlane.queue import Queue

LONG_AGO = 10_000


def spread_over(queue: Queue, *numbers: int) -> ShardLayout:
    return queue.driver.run(shards.set_shards("req", Shards(numbers)))


def tokens_of(client: Any, shard: int) -> list[bytes]:
    """Returns all tokens of one shard."""
    return [token for lane in keys.lanes("req", shard) for token in client.lrange(lane, 0, -1)]


def age(client: Any) -> None:
    """Makes the shards look as if they were set long ago."""
    client.hset(keys.conf("req"), "shards_since", LONG_AGO)


def repaired(queue: Queue) -> list[Finding]:
    """Returns what a walk finds, and repairs all of it."""
    walk = Walk(queue.name)
    found: list[Finding] = []
    while not walk.is_over:
        found += queue.driver.run(walk.page())
    for finding in found:
        queue.driver.run(finding.apply())
    return found


def served(queue: Queue) -> tuple[int, ...]:
    """Returns the shards that workers serve."""
    numbers: tuple[int, ...] = queue.driver.run(shards.read_shards(queue.name)).served
    return numbers


# ------------------------------------------------------------------ names


def test_a_lane_has_a_number_and_the_number_a_lane():
    """The hundreds are the shard, 0 the queue's own."""
    for number in (0, 5, 99, 100, 305, 25_599):
        assert keys.number_of(keys.lane("req", number)) == number
    assert keys.lane("req", 305) == b"{req/3}:5"
    assert keys.lane("my.queue:0", 7) == b"{my.queue:0}:7"


@pytest.mark.parametrize("name", ["req/1", "req/"])
def test_no_queue_can_have_the_name_of_a_shard(name: str):
    """The lanes of the shard would be another queue's."""
    with pytest.raises(InvalidArgument):
        keys.check_name("queue", name)


def test_requests_of_one_permit_spread():
    spread = Shards((3, 4, 9))
    first = [spread.turned(f"r{i}") for i in range(300)]
    assert {text.split(",")[0] for text in first} == {"3", "4", "9"}
    assert first == [spread.turned(f"r{i}") for i in range(300)]
    assert Shards().turned("r1") == ""


def test_shards_are_chosen_on_different_nodes():
    homes = {keys.delayed("req", n): n % 3 for n in range(1, 256)}
    for count, most in ((3, 1), (4, 2), (6, 2), (16, 6)):
        chosen = shards.choose("req", count, homes.__getitem__).numbers
        on = [homes[keys.delayed("req", n)] for n in chosen]
        assert (len(set(chosen)), len(set(on))) == (count, 3)
        assert max(map(on.count, on)) == most


@for_each("count", [-1, 17, 1.5, True, "3"])
def test_a_number_of_shards_that_is_none_is_refused(queue: Queue, count: Any):
    with pytest.raises(InvalidArgument, match="shards are not possible"):
        queue.set_shards(count)


# ------------------------------------------------------------------ submissions


def test_what_is_submitted_goes_to_the_shards(queue: Queue, redis_client: redis.Redis):
    spread_over(queue, 3, 4)
    queue.submit_request([b"x"] * 6, id="r1", limit=6)
    assert [len(tokens_of(redis_client, shard)) for shard in (0, 3, 4)] == [0, 3, 3]
    finish(queue, redis_client)


def test_submit_many_spreads_singles(queue: Queue, redis_client: redis.Redis):
    spread_over(queue, 3, 4)
    queue.submit_many([[b"x"]] * 40)
    counts = [len(tokens_of(redis_client, shard)) for shard in (0, 3, 4)]
    assert counts[0] == 0
    assert sum(counts) == 40
    assert min(counts[1:]) > 8
    finish(queue, redis_client)


def test_a_status_counts_the_tokens_of_all_shards(queue: Queue, redis_client: redis.Redis):
    queue.submit_request([b"x"] * 2, limit=2, priority=7)
    spread_over(queue, 3, 4)
    queue.submit_request([b"x"] * 4, limit=4, priority=7)
    status = queue.status()
    assert (status.lanes, status.shards) == ({7: 6}, (3, 4))
    finish(queue, redis_client)


def test_delayed_tokens_are_promoted_in_every_shard(driver: SyncDriver, redis_client: redis.Redis):
    for shard in (0, 3, 4):
        redis_client.zadd(keys.delayed("req", shard), {"9|r1#0.1": 1})
    assert driver.run(workers.promote("req", (0, 3, 4))) == 3
    for shard in (0, 3, 4):
        assert redis_client.lrange(keys.lanes("req", shard)[9], 0, -1) == [b"r1#0.1"]
        redis_client.delete(keys.lanes("req", shard)[9])


def test_a_token_lost_from_a_shard_is_minted_there_again(queue: Queue, redis_client: redis.Redis):
    """Its permit names the lane where it should be."""
    spread_over(queue, 3, 4)
    queue.submit_request([b"x"] * 2, id="r1", limit=2)
    kept, lost = tokens_of(redis_client, 3), tokens_of(redis_client, 4)
    redis_client.delete(*keys.lanes("req", 4))
    suspects = queue.driver.run(audit.queued_long("r1", -1))
    assert queue.driver.run(audit.remint_lost("req", suspects)) == 1
    assert tokens_of(redis_client, 3) == kept
    assert len(tokens_of(redis_client, 4)) == len(lost) == 1
    finish(queue, redis_client)


def test_a_walk_looks_into_every_shard(queue: Queue, redis_client: redis.Redis):
    spread_over(queue, 3, 4)
    redis_client.lpush(keys.lane("req", 405), "gone#0.1")
    redis_client.zadd(keys.delayed("req", 3), {"what": 1})
    found = repaired(queue)
    assert [(one.check, one.subject) for one in found] == [
        ("unreadable", "what"),
        ("stale", "shard 4, lane 5"),
    ]
    redis_client.delete(keys.lane("req", 405))


# ------------------------------------------------------------------ changes


def test_requests_are_moved_to_the_new_shards(queue: Queue, redis_client: redis.Redis):
    """Their old tokens stay, stale; a second pass finds nothing to do."""
    queue.submit_request([b"x"] * 4, id="r1", limit=4)
    spread_over(queue, 3, 4)
    assert [queue.driver.run(shards.move("req")) for _ in range(2)] == [1, 0]
    assert [len(tokens_of(redis_client, shard)) for shard in (3, 4)] == [2, 2]
    finish(queue, redis_client)


def test_left_shards_are_served_until_no_producer_uses_them(
    queue: Queue, redis_client: redis.Redis
):
    """A producer that has read the old shards may still submit to them."""
    spread_over(queue, 3)
    assert served(queue) == (3, 0)
    queue.driver.run(shards.move("req"))
    assert served(queue) == (3, 0)
    age(redis_client)
    queue.driver.run(shards.move("req"))
    assert served(queue) == (3,)


def test_an_announced_request_keeps_a_left_shard(queue: Queue, redis_client: redis.Redis):
    """Its producer has not finished yet."""
    spread_over(queue, 3)
    age(redis_client)
    redis_client.zadd(keys.active("req"), {"coming": 1})
    queue.driver.run(shards.move("req"))
    assert served(queue) == (3, 0)
    redis_client.delete(keys.active("req"))


def test_what_is_stale_in_a_shard_goes_with_it(queue: Queue, redis_client: redis.Redis):
    spread_over(queue, 3, 4)
    queue.submit_request([b"x"] * 4, id="r1", limit=4)
    spread_over(queue, 4)
    queue.driver.run(shards.move("req"))
    assert tokens_of(redis_client, 3)
    age(redis_client)
    queue.driver.run(shards.move("req"))
    assert tokens_of(redis_client, 3) == []
    finish(queue, redis_client)


@pytest.mark.parametrize("how", ["the leader audits", "doctor repairs"])
def test_tokens_in_unrecorded_shards_are_moved(queue: Queue, redis_client: redis.Redis, how: str):
    """The dispatch slot was lost, or rolled back to before it was spread."""
    spread_over(queue, 3, 4)
    queue.submit_request([b"x"] * 2, id="r1", limit=2)
    for name in (keys.conf("req"), keys.active("req")):
        redis_client.delete(name)
    if how == "doctor repairs":
        redis_client.hset(keys.permits("r1"), mapping=long_queued(redis_client))
        found = repaired(queue)
        assert [one.check for one in found if one.subject == "r1"] == ["forgotten", "astray"]
    else:
        suspects = queue.driver.run(audit.queued_long("r1", -1))
        assert queue.driver.run(audit.remint_lost("req", suspects)) == 1
    assert len(tokens_of(redis_client, 0)) == 2
    finish(queue, redis_client)


def long_queued(client: Any) -> dict[Any, Any]:
    """Makes the permits of r1 look as if they had been queued an hour ago."""
    found = {}
    for k, text in client.hgetall(keys.permits("r1")).items():
        kind, g, since, lane, due = text.split(b":")
        found[k] = b":".join((kind, g, b"%d" % (int(since) - 3_600_000), lane, due))
    return found


def test_a_damaged_request_does_not_keep_a_left_shard(queue: Queue, redis_client: redis.Redis):
    for name in ("bad", "good"):
        queue.submit_request([b"x"] * 2, id=name, limit=2)
    redis_client.hset(keys.request_hash("bad"), "counts", "many")
    spread_over(queue, 3)
    assert queue.driver.run(shards.move("req")) == 1
    age(redis_client)
    assert queue.driver.run(shards.move("req")) == 0
    assert served(queue) == (3,)
    redis_client.delete(*keys.request_keys("bad"))
    redis_client.zrem(keys.active("req"), "bad")
    finish(queue, redis_client)


@pytest.mark.parametrize("fails", ["the read", "the move"])
def test_a_request_whose_node_is_away_keeps_a_left_shard(
    queue: Queue, redis_client: redis.Redis, fails: str
):
    """Its tokens may still be there; the others are moved nevertheless, on every page."""
    for name in ("away", "good"):
        queue.submit_request([b"x"] * 2, id=name, limit=2)
    spread_over(queue, 3)
    kind = Command if fails == "the read" else Call
    assert without(queue.driver, shards.move("req"), "away", kind) == 1
    age(redis_client)
    assert without(queue.driver, shards.move("req"), "away", kind) == 0
    assert served(queue) == (3, 0)
    queue.driver.run(shards.move("req"))
    age(redis_client)
    queue.driver.run(shards.move("req"))
    assert served(queue) == (3,)
    finish(queue, redis_client)


def without(driver: SyncDriver, operation: Any, name: str, kind: type) -> Any:
    """Runs an operation while the node of this request does not answer steps of this kind."""
    reply: Any = None
    while True:
        try:
            is_lost = isinstance(reply, list) and reply and set(map(type, reply)) == {NodeAway}
            step = operation.throw(reply[0]) if is_lost else operation.send(reply)
        except StopIteration as end:
            return end.value
        if not isinstance(step, Batch) or not step.lenient:
            reply = driver.run(once(step))
            continue
        reply = []
        for part in step.steps:
            words = part.keys if isinstance(part, Call) else part.args
            is_away = isinstance(part, kind) and keys.request_hash(name) in words
            reply.append(NodeAway("away") if is_away else driver.run(once(part)))


def test_what_is_no_shard_of_ours_is_passed_over():
    """A later release may use more of them."""
    assert Shards.of(b"1,300,x,,-2,2,1").numbers == (1, 2)
    assert shards.served(b"900", b"\xff") == (0,)


def test_a_shard_that_fails_does_not_keep_others_from_promotion(
    driver: SyncDriver, redis_client: redis.Redis
):
    redis_client.set(keys.delayed("req", 3), "text")
    redis_client.zadd(keys.delayed("req", 4), {"9|r1#0.1": 1})
    with pytest.raises(RedisUnfit, match="WRONGTYPE"):
        driver.run(workers.promote("req", (3, 4)))
    assert redis_client.lrange(keys.lanes("req", 4)[9], 0, -1) == [b"r1#0.1"]
    for name in (keys.lanes("req", 4)[9], keys.delayed("req", 3)):
        redis_client.delete(name)


def test_without_a_change_a_move_reads_no_request(driver: SyncDriver):
    """The maintenance of an ordinary queue costs nothing more."""
    assert driver.run(shards.move("req")) == 0


def test_a_grace_is_longer_than_any_producer_takes():
    """The auditor abandons such a producer's intent before."""
    assert settings.INTENT_GRACE_MS + settings.AUDIT_MS < 2 * 10_000


def finish(queue: Queue, client: Any) -> None:
    """Works everything off from the queue's own lanes."""
    queue.driver.run(shards.set_shards("req", Shards()))
    queue.driver.run(shards.move("req"))
    for shard in (3, 4):
        client.delete(*keys.lanes("req", shard))
    work_off(queue.driver)
    client.delete(keys.conf("req"))


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (RedisUnreachable("no answer"), True),
        (RedisUnfit("NOPERM this user may not run zcount"), True),
        (RedisUnfit("WRONGTYPE it is no hash"), False),
    ],
    ids=["away", "no right", "damage"],
)
def test_a_refused_move_counts_unless_the_request_is_damaged(error: FairlaneError, stays: bool):
    """A left shard must not be forgotten while a request there can be moved later."""
    assert shards._may_be_moved_later(error) is stays
