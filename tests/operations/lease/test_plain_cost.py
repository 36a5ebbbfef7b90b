"""Tests that a plain queue sends no command for rates, delays, tenants, ageing or keys.

The figures are those of one sub-request in the middle of a request. If a change needs more
commands, it must be worth that for everyone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.model import result_head
from fairlane.operations import lease
from fairlane.operations.lease import exchange, exchange_unit
from fairlane.operations.tokens import parse
from fairlane.protocol import keys, scripts
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import next_slice, once, settle
from tests.worker.parts import ON_ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import redis

    from fairlane.drivers.sync import SyncDriver
    from fairlane.model import Slice
    from fairlane.queue import Queue

ROUNDS = 10
# What settles a sub-request and acquires the next one, on whatever way.
SCRIPTS = {
    **dict.fromkeys(("decrby", "exists", "lpush", "xadd", "xdel", "xreadgroup"), 1),
    **dict.fromkeys(("xgroup|delconsumer", "zadd", "zcount", "zrem"), 1),
    "xack": 2,
}
EXCHANGE = {
    **SCRIPTS,
    "evalsha": 1,
    "time": 1,
    "lmpop": 1,
    "hmget": 2,
    "zcard": 1,
    "hget": 3,
    "hset": 7,
}
STEPS = {**SCRIPTS, "evalsha": 3, "time": 2, "hmget": 2, "zcard": 2, "hget": 3, "hset": 6}

# What a submission of one sends.
SUBMISSION = {
    **dict.fromkeys(("evalsha", "exists", "hset", "lpush", "set", "time", "zadd", "zmscore"), 1),
    "hmget": 2,
}


def commands(client: redis.Redis, work: Callable[[], Any]) -> dict[str, float]:
    """Returns the commands of one round, including those inside scripts."""
    client.config_resetstat()
    for _ in range(ROUNDS):
        work()
    stats: dict[str, Any] = client.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}
    left_out = {"config|resetstat", "info", "llen", "rpop"}  # the test pops by these
    left_out |= {"client|setinfo"}  # of a new connection
    return {name: n / ROUNDS for name, n in sorted(counts.items()) if name not in left_out}


class Exchanges:
    """A unit that settles what it holds and takes the next sub-request, in one call."""

    def __init__(self, driver: SyncDriver) -> None:
        self.driver, self.unit = driver, exchange_unit("req", "w:1", "7", 0)
        self.held: list[tuple[Slice, Any]] = []

    def __call__(self) -> None:
        op = lease.new_op()
        step = exchange(self.unit, op, self.held, lanes=keys.lanes("req"), want=1)
        reply = scripts.ExchangeReply.of(self.driver.run(once(step)))
        (raw,), (word,) = reply.acquired, reply.tokens
        token = parse(word)
        assert token is not None
        taken = lease.slice_of(token, op, scripts.AcquireReply.of(raw))
        assert taken is not None
        ids = [entry_id for entry_id, _ in taken.entries]
        head = result_head(ids[0].rpartition(b"-")[2], b"d", 1, 0, 1500)
        self.held = [(taken, (ids, [head, b"x"], []))]


@ON_ONE_SERVER
def test_an_exchange_sends_what_a_plain_sub_request_needs(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis
):
    queue.submit_request([b"x"] * 40, limit=1)
    work = Exchanges(driver)
    work()
    work()
    assert commands(redis_client, work) == EXCHANGE


@ON_ONE_SERVER
def test_the_single_steps_send_what_a_plain_sub_request_needs(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis
):
    queue.submit_request([b"x"] * 40, limit=1)
    settle(driver, next_slice(driver, count=1))
    assert commands(redis_client, lambda: settle(driver, next_slice(driver, count=1))) == STEPS


@ON_ONE_SERVER
@for_each("other", ["rate", "tenant", "ageing", "delay", "key", "order"])
def test_what_other_queues_and_requests_use_costs_a_plain_one_nothing(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis, other: str
):
    """Another request of the queue waits, with such an option, behind the plain one."""
    every: dict[str, dict[str, Any]] = {
        "rate": {"rate": "5/h"},
        "tenant": {"tenant": "t"},
        "ageing": {"ageing": 60.0},
        "delay": {"delay": 60.0},
        "key": {"limits": {"x": 1}},
        "order": {"order_key": "x"},
    }
    queue.submit_request([b"y"] * 9, priority=90, **every[other])
    queue.submit_request([b"x"] * 40, limit=1)
    work = Exchanges(driver)
    work()
    work()
    assert commands(redis_client, work) == EXCHANGE


@ON_ONE_SERVER
def test_a_submission_sends_what_a_plain_request_needs(queue: Queue, redis_client: redis.Redis):
    """Another request of the queue has a key, and one an order."""
    queue.submit_request([b"y"], limits={"x": 1})
    queue.submit_request([b"y"], order_key="x")
    assert commands(redis_client, lambda: queue.submit_request([b"x"])) == SUBMISSION


@ON_ONE_SERVER
def test_a_submission_with_a_key_sends_few_commands_more(queue: Queue, redis_client: redis.Redis):
    """The key is in use already, and has room."""
    keyed: dict[str, Any] = {"limits": {"x": 10_000}}
    plain = commands(redis_client, lambda: queue.submit_request([b"x"]))
    queue.submit_request([b"x"], **keyed)
    found = commands(redis_client, lambda: queue.submit_request([b"x"], **keyed))
    assert more(found, plain) == {"hget": 5, "hincrby": 1, "hset": 1, "zadd": 1, "zcount": 1}


@ON_ONE_SERVER
def test_an_exchange_with_a_key_sends_few_commands_more(
    queue: Queue, driver: SyncDriver, redis_client: redis.Redis
):
    """The key is in use by another request, and has room."""
    queue.submit_request([b"x"], id="other", priority=90, limits={"x": 10})
    queue.submit_request([b"x"] * 40, limit=1, limits={"x": 10})
    work = Exchanges(driver)
    work()
    work()
    assert more(commands(redis_client, work), EXCHANGE) == {
        "hget": 2,
        "hincrby": 1,
        "zadd": 2,
        "zcount": 2,
        "zrem": 2,
        "zrange": 1,
    }


def more(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Returns how many more of each command there are."""
    names = sorted({*one, *other})
    return {name: n for name in names if (n := one.get(name, 0) - other.get(name, 0))}
