"""Tests the multiplexed connection: many tasks share it, and each gets its own replies."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.aio import CALLS_PER_WRITE, AsyncDriver
from fairlane.operations import tokens
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command
from tests.support.network.fakes import FakeServer, fake_servers
from tests.support.operations.lines import (
    HERE,
    LAST,
    MIDDLE,
    THERE,
    Says,
    connected,
    echo,
    until,
    watched,
)
from tests.support.run.event_loop import in_event_loop
from tests.support.scripts.requests import once
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    import redis


# ------------------------------------------------------------------ one line


@in_event_loop
async def test_calls_of_one_turn_are_one_write(server: FakeServer):
    """Calls and batches of many tasks are sent in the order of their calls."""
    async with connected(server) as driver:
        writes = watched(driver)
        asked = [echo(driver, b"%d" % i) for i in range(CALLS_PER_WRITE - 1)]
        found = await asyncio.gather(*asked, echo(driver, b"x", b"y"))
        assert found == [*(b"%d" % i for i in range(CALLS_PER_WRITE - 1)), [b"x", b"y"]]
        assert len(writes.sent) == 1


@in_event_loop
async def test_of_very_much_the_server_receives_the_beginning_soon(server: FakeServer):
    """The server works on them while the other tasks of the same turn call."""
    async with connected(server) as driver:
        writes, words = watched(driver), [b"%d" % i for i in range(5 * CALLS_PER_WRITE + 1)]
        assert await asyncio.gather(*(echo(driver, word) for word in words)) == words
        assert len(writes.sent) == 6
        assert len(writes.sent[-1]) < len(writes.sent[0])
        assert await asyncio.gather(*(echo(driver, word) for word in words[:3])) == words[:3]
        assert len(writes.sent) == 7


@in_event_loop
async def test_the_line_is_made_once_for_all_tasks(server: FakeServer):
    async with connected(server) as driver:
        await driver.servers.close()
        made = server.connections
        words = [b"%d" % i for i in range(40)]
        assert await asyncio.gather(*(echo(driver, word) for word in words)) == words
        assert server.connections == made + 1


def test_every_reply_goes_to_its_caller(server: FakeServer):
    async def ask(driver: AsyncDriver, name: int) -> None:
        for i in range(20):
            words = [b"%d.%d.%d" % (name, i, k) for k in range(1 + (name + i) % 3)]
            assert await echo(driver, *words) == (words if len(words) > 1 else words[0])

    async def scene() -> int:
        async with connected(server) as driver:
            made = server.connections
            await asyncio.gather(*(ask(driver, name) for name in range(30)))
            return server.connections - made

    assert asyncio.run(scene()) == 0


def test_each_node_of_a_cluster_has_a_line():
    async def scene(servers: list[FakeServer]) -> None:
        async with connected(*servers) as driver:
            made = [one.connections for one in servers]
            asked = [echo(driver, HERE, THERE) for _ in range(20)]
            assert await asyncio.gather(*asked) == [[HERE, THERE]] * 20
            assert [one.connections for one in servers] == made
            assert [one.times(b"ECHO", HERE) for one in servers] == [21, 0]
            assert [one.times(b"ECHO", THERE) for one in servers] == [0, 21]

    with fake_servers(2) as servers:
        for one in servers:
            one.say = Says()
            one.slots = [(MIDDLE, servers[1]), (LAST, servers[0])]
        asyncio.run(scene(servers))


@in_event_loop
async def test_what_is_long_has_a_line_of_its_own(server: FakeServer):
    """It would delay the others while it is sent."""
    async with connected(server) as driver:
        writes = watched(driver)
        long, many = b"x" * 100_000, [b"%d" % i for i in range(40)]
        assert await echo(driver, long) == long
        assert await echo(driver, long, b"y") == [long, b"y"]
        assert await echo(driver, *many) == many
        assert writes.sent == []
        assert await echo(driver, b"z") == b"z"
        assert len(writes.sent) == 1


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the loops that end leave connections open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_driver_may_go_on_in_another_event_loop(server: FakeServer):
    driver = AsyncDriver(f"redis://127.0.0.1:{server.port}", patience_s=0)

    async def scene(words: list[bytes], *, is_last: bool = False) -> None:
        for word in words:
            assert await echo(driver, word) == word
        if is_last:
            await driver.close()

    short, long = b"x", b"x" * 100_000  # over the line that is shared, over one of its own
    asyncio.run(scene([short, long]))
    asyncio.run(scene([short, long]))
    asyncio.run(scene([long, short], is_last=True))
    gc.collect()


@pytest.mark.any_command
def test_forgotten_scripts_are_sent_whole(redis_url: str, redis_client: redis.Redis):
    def intend(name: str) -> Any:
        return scripts.intend(
            (keys.active("req"), keys.conf("req")), ids=[name], grace=1, above=0, named="", now=1
        )

    async def scene() -> None:
        driver = AsyncDriver(redis_url, patience_s=0)
        try:
            await driver.run(once(Command(b"EXISTS", "a")))
            redis_client.script_flush()
            calls = [driver.run(once(intend(f"r{i}"))) for i in range(10)]
            batches = [
                driver.run(once(Batch([intend(f"s{i}"), Command(b"EXISTS", "a")])))
                for i in range(10)
            ]
            found = await asyncio.gather(*calls, *batches)
            assert found == [[0, b"", 2, b"0"]] * 10 + [[[0, b"", 2, b"0"], 0]] * 10
        finally:
            await driver.close()

    asyncio.run(scene())
    assert redis_client.zcard(keys.active("req")) == 20


# ------------------------------------------------------------------ pops


class Lane:
    """A server with one lane: pops of all kinds; blocking ones wait for `more`."""

    def __init__(self, *found: bytes) -> None:
        self.found = [*found]
        self.more = threading.Event()

    def __call__(self, words: list[bytes]) -> Any:
        name = words[0]
        if name not in {b"LMPOP", b"BLMPOP", b"BRPOP"}:
            return words[-1]
        if not self.found and name != b"LMPOP":
            self.more.wait(PATIENCE_S)
        if not self.found:
            return None
        token = self.found.pop(0)
        return [b"{req}:5", token] if name == b"BRPOP" else [b"{req}:5", [token]]


async def pops(count: int, seen: list[Any]) -> None:
    """Pops as a worker does, after its other steps."""
    for i in range(count):
        said, popped = await Batch([Command(b"ECHO", b"%d" % i), tokens.pop("req", 2000, "w")])
        assert said == b"%d" % i
        seen.append(popped and popped.tokens)


@in_event_loop
async def test_a_pop_that_waits_has_its_own_line(server: FakeServer):
    lane = server.say = Lane()
    async with connected(server) as driver:
        seen: list[Any] = []
        waiting = asyncio.create_task(driver.run(pops(1, seen)))
        await until(lambda: server.times(b"BRPOP"))
        assert await echo(driver, b"x") == b"x"
        assert not waiting.done()
        lane.found.append(b"t1")
        lane.more.set()
        await waiting
        assert seen == [[b"t1"]]


@in_event_loop
async def test_a_busy_run_pops_without_waiting_first(server: FakeServer):
    """It does so while it finds tokens; then it blocks again. Other steps are not repeated."""
    lane = server.say = Lane(b"t1", b"t2", b"t3")
    async with connected(server) as driver:
        seen: list[Any] = []
        running = asyncio.create_task(driver.run(pops(5, seen)))
        await until(lambda: server.times(b"BRPOP") == 2)
        assert seen == [[b"t1"], [b"t2"], [b"t3"]]
        assert server.times(b"LMPOP") == 3
        lane.more.set()
        await running
        assert seen[3:] == [None, None]
        assert (server.times(b"LMPOP"), server.times(b"BRPOP")) == (3, 3)
        assert [server.times(b"ECHO", b"%d" % i) for i in range(5)] == [1] * 5
