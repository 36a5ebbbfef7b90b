"""The connection that all tasks of an event loop share: who gets which answer, come what may."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import keys
from fairlane.drivers.aio import AsyncDriver
from fairlane.drivers.aio_shared import AT_ONCE
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.operations import tokens
from fairlane.scripts import library
from fairlane.steps import Batch, Command, Operation
from tests.support.fakes import FakeServer, Refusal, fake_servers
from tests.support.requests import once

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import redis

HERE, THERE = b"{d}", b"{b}"  # slots 11298 and 3300
MIDDLE, LAST = 8_000, 16_383


class Says:
    """Answers ECHO with its word; what is held back waits for `go`."""

    def __init__(self, hold: bytes = b"") -> None:
        self.hold = hold
        self.go = threading.Event()

    def __call__(self, words: list[bytes]) -> Any:
        if words[-1] == self.hold:
            assert self.go.wait(20)
        return words[-1]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_servers(1) as (made,):
        made.say = Says()
        yield made


@asynccontextmanager
async def connected(*servers: FakeServer, **options: Any) -> AsyncIterator[AsyncDriver]:
    """A driver that has a shared line to each of them already."""
    scheme = "redis" if servers[0].slots is None else "redis+cluster"
    url = f"{scheme}://" + ",".join(f"127.0.0.1:{one.port}" for one in servers)
    driver = AsyncDriver(url, **{"patience_s": 20} | options)
    try:
        await asyncio.gather(echo(driver, HERE), echo(driver, THERE))
        yield driver
    finally:
        await driver.close()


async def echo(driver: AsyncDriver, *words: bytes) -> Any:
    """One call, or a batch of them; a fake answers each with its word."""
    steps = [Command(b"ECHO", word) for word in words]
    return await driver.run(once(steps[0] if len(steps) == 1 else Batch(steps)))


async def until(holds: Callable[[], Any]) -> None:
    """Let the other tasks run until something holds; the test's own timeout is its end."""
    while not holds():  # noqa: ASYNC110  the server tells no event
        await asyncio.sleep(0)


class Writes:
    """A transport that remembers what is written."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        self.transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def shared_by(driver: AsyncDriver) -> Any:
    """The line to its one server."""
    lines = driver.servers._one
    assert lines is not None
    return lines.shared


def watched(driver: AsyncDriver) -> Writes:
    """What goes over the shared line from now on."""
    shared = shared_by(driver)
    writes = shared._transport = Writes(shared._transport)
    return writes


# ------------------------------------------------------------------ one line


def test_what_is_asked_in_one_turn_is_one_write(server: FakeServer):
    """Calls and batches of many tasks, in the order in which they asked."""

    async def scene() -> None:
        async with connected(server) as driver:
            writes = watched(driver)
            asked = [echo(driver, b"%d" % i) for i in range(AT_ONCE - 1)]
            found = await asyncio.gather(*asked, echo(driver, b"x", b"y"))
            assert found == [*(b"%d" % i for i in range(AT_ONCE - 1)), [b"x", b"y"]]
            assert len(writes.sent) == 1

    asyncio.run(scene())


def test_of_very_much_the_server_hears_the_beginning_soon(server: FakeServer):
    """It works on it while the others of the same turn ask; the rest goes when the turn ends."""

    async def scene() -> None:
        async with connected(server) as driver:
            writes, words = watched(driver), [b"%d" % i for i in range(5 * AT_ONCE + 1)]
            assert await asyncio.gather(*(echo(driver, word) for word in words)) == words
            assert len(writes.sent) == 6
            assert len(writes.sent[-1]) < len(writes.sent[0])
            assert await asyncio.gather(*(echo(driver, word) for word in words[:3])) == words[:3]
            assert len(writes.sent) == 7

    asyncio.run(scene())


def test_the_line_is_made_once_for_all_who_want_it(server: FakeServer):
    """However many ask while it is made."""

    async def scene() -> None:
        async with connected(server) as driver:
            await driver.servers.close()
            made = server.connections
            words = [b"%d" % i for i in range(40)]
            assert await asyncio.gather(*(echo(driver, word) for word in words)) == words
            assert server.connections == made + 1

    asyncio.run(scene())


def test_every_reply_goes_to_who_asked(server: FakeServer):
    """Whoever asks next, and however much."""

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
    """And a batch is spread over them."""

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


def test_what_is_long_has_a_line_of_its_own(server: FakeServer):
    """It would keep the others waiting while it is sent."""

    async def scene() -> None:
        async with connected(server) as driver:
            writes = watched(driver)
            long, many = b"x" * 100_000, [b"%d" % i for i in range(40)]
            assert await echo(driver, long) == long
            assert await echo(driver, long, b"y") == [long, b"y"]
            assert await echo(driver, *many) == many
            assert writes.sent == []
            assert await echo(driver, b"z") == b"z"
            assert len(writes.sent) == 1

    asyncio.run(scene())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the loops that end leave lines behind
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_driver_may_go_on_in_another_event_loop(server: FakeServer):
    """The lines of the one that is over are not used."""
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


# ------------------------------------------------------------------ who goes away, and what breaks


def test_who_is_cancelled_disturbs_nobody(server: FakeServer):
    """Replies to him are thrown away, and those behind them go to those behind him."""
    says = server.say = Says(hold=b"first")

    async def scene() -> None:
        async with connected(server) as driver:
            made = server.connections
            words = (b"first", b"second", b"third")
            first, second, third = (asyncio.create_task(echo(driver, w)) for w in words)
            pair = asyncio.create_task(echo(driver, b"a", b"b"))
            await until(lambda: server.times(b"ECHO", b"first"))
            second.cancel()
            pair.cancel()
            assert await asyncio.gather(second, pair, return_exceptions=True)
            late = asyncio.create_task(echo(driver, b"late"))
            says.go.set()
            found = await asyncio.gather(first, third, late)
            assert [*found] == [b"first", b"third", b"late"]
            assert await echo(driver, b"next") == b"next"
            assert server.connections == made
            assert server.times(b"ECHO", b"second") == 1

    asyncio.run(scene())


def test_a_broken_line_repeats_all_that_was_on_it(server: FakeServer):
    """The same words, on one new line; the driver is told of it once."""

    async def scene() -> None:
        async with connected(server) as driver:
            made, cuts = server.connections, []
            driver.on_cut = lambda: cuts.append(1)
            server.say = cut_once(server)
            words = [b"%d" % i for i in range(20)]
            found = await asyncio.gather(
                *(echo(driver, w) for w in words), echo(driver, b"x", b"y")
            )
            assert found == [*words, [b"x", b"y"]]
            assert (server.connections, len(cuts)) == (made + 1, 1)
            assert server.times(b"ECHO", b"0") == 2

    asyncio.run(scene())


def cut_once(server: FakeServer) -> Callable[[list[bytes]], Any]:
    """Ends the connection instead of an answer."""

    def cut(_: list[bytes]) -> Any:
        server.say = Says()
        raise ConnectionResetError

    return cut


def test_without_patience_a_broken_line_is_told_to_each(server: FakeServer):
    """Each has an error of his own, and the next call has a new line."""

    async def scene() -> None:
        async with connected(server, patience_s=0) as driver:
            server.say = cut_once(server)
            asked = (echo(driver, b"%d" % i) for i in range(20))
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(error) for error in found} == {RedisUnreachable}
            assert await echo(driver, b"next") == b"next"
            shared = shared_by(driver)
            server.say = cut_once(server)
            waiting = [shared.ask(b"*1\r\n$1\r\nx\r\n") for _ in range(3)]
            await asyncio.wait(waiting)
            assert len({id(one.exception()) for one in waiting}) == 3

    asyncio.run(scene())


@pytest.mark.parametrize("error", ["READONLY a replica", "LOADING the data", "MASTERDOWN x"])
def test_an_error_that_spoils_the_line_leaves_the_others_their_answers(
    error: str, server: FakeServer
):
    """Only what was refused is repeated, on a new line; nobody asks the old one any more."""
    says = Says(hold=b"last")

    def refuse(words: list[bytes]) -> Any:
        if words[-1] == b"bad":
            server.say = says
            return Refusal(error)
        return says(words)

    async def scene() -> None:
        async with connected(server) as driver:
            made, old = server.connections, shared_by(driver)
            server.say = refuse
            words = (b"good", b"bad", b"last")
            good, bad, last = (asyncio.create_task(echo(driver, w)) for w in words)
            assert [*await asyncio.gather(good, bad)] == [b"good", b"bad"]
            assert server.connections == made + 1
            assert not last.done()
            assert shared_by(driver) is not old
            says.go.set()
            assert await last == b"last"
            assert [server.times(b"ECHO", w) for w in words] == [1, 2, 1]
            await until(lambda: is_closed(old))

    asyncio.run(scene())


def test_a_line_is_given_up_once(server: FakeServer):
    """What its last answers say of the server is no news, and the new line stays."""
    says, refused = Says(hold=b"long"), {b"bad", b"late"}

    def refuse(words: list[bytes]) -> Any:
        answer = says(words)
        if answer in refused:
            refused.remove(answer)
            return Refusal("READONLY a replica")
        return answer

    async def scene() -> None:
        async with connected(server) as driver:
            made = server.connections
            server.say = refuse
            words = (b"bad", b"long", b"late")
            bad, *others = (asyncio.create_task(echo(driver, word)) for word in words)
            assert await bad == b"bad"
            new = shared_by(driver)
            says.go.set()
            assert [*await asyncio.gather(*others)] == [b"long", b"late"]
            assert shared_by(driver) is new
            assert server.connections == made + 1

    asyncio.run(scene())


def is_closed(shared: Any) -> bool:
    return bool(shared._transport.is_closing())


@pytest.mark.parametrize("error", ["WRONGTYPE no list", "NOPERM no", "ERR unknown"])
def test_an_error_of_a_call_alone_leaves_the_line_as_it_is(error: str, server: FakeServer):
    """It is raised where it belongs."""

    async def scene() -> None:
        async with connected(server) as driver:
            made, says = server.connections, Says()
            server.say = lambda words: Refusal(error) if words[-1] == b"bad" else says(words)
            words = (b"a", b"bad", b"b")
            found = await asyncio.gather(
                *(echo(driver, word) for word in words), return_exceptions=True
            )
            assert (found[0], found[2]) == (b"a", b"b")
            assert isinstance(found[1], Exception)
            assert server.connections == made

    asyncio.run(scene())


def test_a_line_that_has_to_log_in_again_is_made_anew(server: FakeServer):
    """The user's password was changed, perhaps: what was refused is told, the next call logs in."""

    async def scene() -> None:
        async with connected(server) as driver:
            made = server.connections
            server.say = lambda _: Refusal("NOAUTH Authentication required.")
            with pytest.raises(RedisUnfit):
                await echo(driver, b"a")
            server.say = Says()
            assert await echo(driver, b"b") == b"b"
            assert server.connections == made + 1

    asyncio.run(scene())


def test_a_silent_server_is_left_by_all(server: FakeServer):
    """None of them waits for longer than one answer may take."""
    says = server.say = Says(hold=b"0")

    async def scene() -> None:
        async with connected(server, patience_s=0, timeout_s=0.3) as driver:
            asked = (echo(driver, b"%d" % i) for i in range(20))
            found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
            assert {type(error) for error in found} == {RedisUnreachable}
            assert "Timeout reading" in str(found[-1])
            says.go.set()
            assert await echo(driver, b"next") == b"next"

    asyncio.run(scene())


def test_a_loop_that_was_away_reads_before_it_gives_up(server: FakeServer):
    """It may be our own process that was stopped, and not the server."""
    says = server.say = Says(hold=b"a")

    async def scene() -> None:
        async with connected(server, patience_s=0, timeout_s=60) as driver:
            shared = shared_by(driver)
            task = asyncio.create_task(echo(driver, b"a"))
            await until(lambda: server.times(b"ECHO", b"a"))
            shared._heard -= 100
            shared._look()
            says.go.set()
            assert await task == b"a"
            assert shared_by(driver) is shared
            await until(lambda: shared._timer is None)  # the second look is over
            assert shared_by(driver) is shared

    asyncio.run(scene())


def test_an_idle_line_is_not_taken_for_a_silent_one(server: FakeServer):
    """The time counts from the moment when something was asked."""
    says = server.say = Says(hold=b"a")

    async def scene() -> None:
        async with connected(server, patience_s=0, timeout_s=60) as driver:
            shared = shared_by(driver)
            shared._heard -= 100
            task = asyncio.create_task(echo(driver, b"a"))
            await until(lambda: server.times(b"ECHO", b"a"))
            assert shared.loop.time() - shared._heard < 50
            says.go.set()
            assert await task == b"a"

    asyncio.run(scene())


def test_a_driver_that_is_closed_lets_those_who_wait_have_their_answers(server: FakeServer):
    """Then the line closes, too."""
    says = server.say = Says(hold=b"a")

    async def scene() -> None:
        async with connected(server) as driver:
            shared, made = shared_by(driver), server.connections
            task = asyncio.create_task(echo(driver, b"a"))
            await until(lambda: server.times(b"ECHO", b"a"))
            await driver.close()
            assert not is_closed(shared)
            says.go.set()
            assert await task == b"a"
            assert is_closed(shared)
            assert server.connections == made

    asyncio.run(scene())


@pytest.mark.any_command
def test_forgotten_scripts_are_sent_whole(redis_url: str, redis_client: redis.Redis):
    """Those of calls and of batches, by all at once."""

    def intend(name: str) -> Any:
        return library().intend(
            (keys.active("req"), keys.conf("req")), ids=[name], grace=1, above=0, now=1
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
    """A server with one lane: pops of all kinds, and waiting ones that wait for `more`."""

    def __init__(self, *found: bytes) -> None:
        self.found = [*found]
        self.more = threading.Event()

    def __call__(self, words: list[bytes]) -> Any:
        name = words[0]
        if name not in {b"LMPOP", b"BLMPOP", b"BRPOP"}:
            return words[-1]
        if not self.found and name != b"LMPOP":
            self.more.wait(20)
        if not self.found:
            return None
        token = self.found.pop(0)
        return [b"{req}:5", token] if name == b"BRPOP" else [b"{req}:5", [token]]


def pops(count: int, seen: list[Any]) -> Operation[None]:
    """Pops as a worker does, behind what it has to say."""
    for i in range(count):
        said, popped = yield Batch([Command(b"ECHO", b"%d" % i), tokens.pop("req", 2000, "w")])
        assert said == b"%d" % i
        seen.append(popped and popped.tokens)


def test_a_pop_that_waits_holds_up_nobody(server: FakeServer):
    """It has a line of its own."""
    lane = server.say = Lane()

    async def scene() -> None:
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

    asyncio.run(scene())


def test_a_busy_run_pops_without_waiting_first(server: FakeServer):
    """While it finds something; then it waits again. What was beside the pop is not repeated."""
    lane = server.say = Lane(b"t1", b"t2", b"t3")

    async def scene() -> None:
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

    asyncio.run(scene())


def test_redis_before_seven_is_never_asked_for_a_pop_of_many_lists_that_does_not_wait(
    server: FakeServer,
):
    """It has none."""
    server.version = "6.2.14"
    server.say = Lane(b"t1", b"t2", b"t3")

    async def scene() -> None:
        async with connected(server) as driver:
            seen: list[Any] = []
            await driver.run(pops(3, seen))
            assert seen == [[b"t1"], [b"t2"], [b"t3"]]
            assert (server.times(b"LMPOP"), server.times(b"BRPOP")) == (0, 3)

    asyncio.run(scene())
