"""Tests both drivers on a cluster whose slots are half-way moved, or have moved."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio
from fairlane.drivers.sync import SyncDriver
from fairlane.operations import change, shards, tokens
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Command, Message, Operation, Pause, Subscribe
from fairlane.queue import Queue
from tests.support.operations.drivers import both, run
from tests.support.scripts.requests import once, work_off
from tests.support.servers.clusters import run_cluster, slot_of
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers.clusters import Cluster, Node

LANES = keys.lanes("req")
HOME = slot_of(LANES[0])
pytestmark = [pytest.mark.server]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Runs three primaries, without failovers."""
    with run_cluster(3, 0) as made:
        yield made


@pytest.fixture
def driver(cluster: Cluster) -> Iterator[SyncDriver]:
    """Makes a driver that has the slots as they are before a test moves any."""
    with contextlib.closing(SyncDriver(cluster.url, patience_s=20)) as made:
        made.run(once(Command(b"EXISTS", "a")))
        yield made
        cluster.wait_ok()
        for node in cluster.primaries():
            node.ask("FLUSHALL")


def other(cluster: Cluster, slot: int) -> Node:
    """Returns a primary that does not own this slot."""
    owner = cluster.owner(slot)
    return next(node for node in cluster.primaries() if node is not owner)


@contextlib.contextmanager
def half_moved(cluster: Cluster, slot: int, count: int | None = 0) -> Iterator[None]:
    """Moves so many keys of a slot; at the end of the block all of it arrives."""
    cluster.begin_move(slot, other(cluster, slot))
    if count is None or count:
        cluster.move_keys(slot, count)
    yield
    cluster.move_keys(slot)
    cluster.finish_move(slot)


def perform(kind: str, driver: SyncDriver, operation: Operation[Any]) -> Any:
    """Runs an operation by the driver that was there before, or by an asyncio one."""
    if kind == "sync":
        return driver.run(operation)
    return run("async", driver.url, operation, patience_s=20)


def stored_in(cluster: Cluster, key: bytes) -> int:
    """Returns how many lists or other values of this key there are, on all nodes."""
    return sum(len(node.ask("KEYS", key)) for node in cluster.primaries())


# ------------------------------------------------------------------ slots that have moved


@both
def test_a_batch_finds_each_slot_where_it_is_now(kind: str, cluster: Cluster, driver: SyncDriver):
    """One step's slot has moved away from the node of the others: only that one goes elsewhere."""
    owner = cluster.owner(HOME)
    names = [f"{{{i}}}" for i in range(200) if cluster.owner(slot_of(f"{{{i}}}")) is owner][:6]
    for name in names:
        driver.run(once(Command(b"SET", name, name)))
    cluster.move_slot(slot_of(names[3]), other(cluster, slot_of(names[3])))
    steps = [Command(b"APPEND", name, "!") for name in names]
    assert perform(kind, driver, once(Batch(steps))) == [len(name) + 1 for name in names]
    again = perform(kind, driver, once(Batch([Command(b"GET", name) for name in names])))
    assert again == [f"{name}!".encode() for name in names]


@both
def test_a_waiter_follows_its_request(kind: str, cluster: Cluster, driver: SyncDriver):
    """The channel moves with the slot, and the waiter receives what is published there."""
    slot, channel = slot_of("done:{r1}"), keys.done_channel("r1")
    listening = threading.Event()

    async def operation() -> Any:
        await Subscribe(channel)
        listening.set()
        for _ in range(100):
            message = await Message(0.2)
            if message is not None:
                return message
        return None

    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(perform(kind, driver, operation())))
    waiter.start()
    assert listening.wait(PATIENCE_S)
    cluster.move_slot(slot, other(cluster, slot))

    def is_subscribed() -> bool:
        cluster.owner(slot).ask("SPUBLISH", channel, "done")
        return bool(got)

    wait_until(is_subscribed, why="the waiter listens at the new node")
    waiter.join(20)
    assert got == [b"done"]


# ------------------------------------------------------------------ slots on the move


@both
@pytest.mark.parametrize("moved", [False, True])
def test_a_key_is_found_on_either_side(
    kind: str, cluster: Cluster, driver: SyncDriver, *, moved: bool
):
    """A command of one key is answered while its slot moves: ASK is followed."""
    driver.run(once(Command(b"SET", "{req}:one", "1")))
    with half_moved(cluster, HOME, None if moved else 0):
        steps = [Command(b"GET", "{req}:one"), Command(b"INCR", "{req}:new"), Command(b"GET", "b")]
        assert perform(kind, driver, once(Batch(steps))) == [b"1", 1, None]
        assert perform(kind, driver, once(Command(b"GET", "{req}:one"))) == b"1"
        assert stored_in(cluster, b"{req}:new") == 1


@both
@pytest.mark.parametrize("count", [0, 1, None])
def test_tokens_are_popped_while_their_lanes_move(
    kind: str, cluster: Cluster, driver: SyncDriver, count: int | None
):
    """The most urgent tokens come first, on whichever side, by commands of one key each."""
    for lane, name in ((7, "late"), (3, "soon"), (3, "sooner")):
        driver.run(once(Command(b"RPUSH", LANES[lane], f"{name}#0.1")))
    with half_moved(cluster, HOME, count):
        found = [perform(kind, driver, once(tokens.pop("req", 2_000, "w:1", 1))) for _ in range(3)]
        assert [one.tokens for one in found] == [[b"sooner#0.1"], [b"soon#0.1"], [b"late#0.1"]]
        assert perform(kind, driver, once(tokens.pop_ahead("req", 99, 5))) is None


@both
@pytest.mark.parametrize("count", [0, None])
def test_tokens_are_dispatched_while_their_lanes_move(
    kind: str, cluster: Cluster, driver: SyncDriver, count: int | None
):
    """Tokens are due now and later; none is stored twice, none is lost."""
    driver.run(once(Command(b"LPUSH", LANES[5], "before#0.1")))
    minted = [b"5", b"1.2", 0, b"6", b"2.3", 0, b"5", b"3.4", 60_000]
    with half_moved(cluster, HOME, count):
        assert perform(kind, driver, once(Batch(tokens.insert("req", "r1", minted)))) == [3]
    lanes = [driver.run(once(Command(b"LRANGE", LANES[lane], 0, -1))) for lane in (5, 6)]
    assert lanes == [[b"r1#1.2", b"before#0.1"], [b"r1#2.3"]]
    ((member, due),) = zip(
        *[iter(driver.run(once(Command(b"ZRANGE", keys.delayed("req"), 0, -1, b"WITHSCORES"))))]
        * 2,
        strict=True,
    )
    (seconds, _) = cluster.owner(HOME).ask("TIME")
    assert member == b"5|r1#3.4"
    assert 0 < float(due) - seconds * 1000 <= 61_000


@both
def test_a_script_waits_until_its_slot_has_arrived(kind: str, cluster: Cluster, driver: SyncDriver):
    """It has ten keys, some of them missing: no node can answer it before."""
    queue = Queue(driver)
    queue.submit_request([b"x"], id="r1")
    slot = slot_of("req:{r1}")
    cluster.begin_move(slot, other(cluster, slot))
    refused = threading.Event()

    async def operation() -> Any:
        await Pause(0)
        refused.set()
        return await change.cancel("r1", "why")

    got: list[Any] = []
    caller = threading.Thread(target=lambda: got.append(perform(kind, driver, operation())))
    caller.start()
    assert refused.wait(PATIENCE_S)
    assert got == []
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    caller.join(20)
    assert got == [True]
    assert queue.request("r1").wait(timeout=PATIENCE_S) == "cancelled"


def test_a_queue_lives_through_the_move_of_its_slots(cluster: Cluster, driver: SyncDriver):
    """Its own slot and those of its requests move in turn: all is done once."""
    queue = Queue(driver)
    queue.set_shards(3)
    requests = [queue.submit_request([b"x"] * 5, id=f"r{i}", limit=2) for i in range(4)]
    queue.set_shards(0)
    driver.run(shards.move("req"))
    for name in ("{req}", *(f"{{r{i}}}" for i in range(4))):
        cluster.move_slot(slot_of(name), other(cluster, slot_of(name)))
    queue.submit_request([b"y"], id="more")
    while work_off(driver):
        pass
    for request in (*requests, queue.request("more")):
        assert request.wait(timeout=PATIENCE_S) == "done"


@both
def test_shards_are_on_different_primaries(kind: str, cluster: Cluster, driver: SyncDriver):
    """There are as many as primaries, wherever the slots moved since the queue was made."""

    def homes(numbers: tuple[int, ...]) -> set[int]:
        return {cluster.owner(keys.delayed("req", n)).port for n in numbers}

    async def twice() -> tuple[int, ...]:
        async with aio.Queue.from_url(driver.url) as queue:
            first = (await queue.set_shards(3)).present.numbers
            slot = slot_of(keys.delayed("req", first[0]))
            await asyncio.to_thread(cluster.move_slot, slot, other(cluster, slot))
            return (await queue.set_shards(3)).present.numbers

    if kind == "async":
        assert len(homes(asyncio.run(twice()))) == 3
        return
    queue = Queue(driver)
    first = queue.set_shards(3).present.numbers
    assert len(homes(first)) == 3
    slot = slot_of(keys.delayed("req", first[0]))
    cluster.move_slot(slot, other(cluster, slot))
    assert len(homes(queue.set_shards(3).present.numbers)) == 3


@both
def test_a_script_is_loaded_where_its_slot_is_going(
    kind: str, cluster: Cluster, driver: SyncDriver
):
    """The node that already has the keys has no copy of the script."""
    key = keys.conf("elsewhere")
    slot = slot_of(key)
    driver.run(once(Command(b"HSET", key, b"max_waiting", 0)))
    other(cluster, slot).ask("SCRIPT", "FLUSH")
    with half_moved(cluster, slot, None):
        operation = shards.set_shards("elsewhere", shards.Shards((1,)))
        assert perform(kind, driver, operation).present.numbers == (1,)
