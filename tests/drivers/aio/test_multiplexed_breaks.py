"""Tests cancelled tasks and broken connections on the multiplexed connection."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.protocol import keys, scripts
from fairlane.protocol.steps import Batch, Command
from tests.support.network.fakes import FakeServer, Refusal, fake_servers
from tests.support.operations.lines import (
    HERE,
    LAST,
    MIDDLE,
    Says,
    connected,
    cut_once,
    echo,
    is_closed,
    shared_by,
    until,
)
from tests.support.run.event_loop import in_event_loop
from tests.support.scripts.requests import once
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


@in_event_loop
async def test_a_cancelled_task_disturbs_no_other(server: FakeServer):
    """Its replies are dropped, and those behind them go to the tasks behind it."""
    says = server.say = Says(hold=b"first")
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


@in_event_loop
async def test_a_broken_line_repeats_all_that_was_on_it(server: FakeServer):
    """The same words are sent on one new connection; the driver is notified once."""
    async with connected(server) as driver:
        made, cuts = server.connections, []
        driver.on_cut = lambda: cuts.append(1)
        server.say = cut_once(server)
        words = [b"%d" % i for i in range(20)]
        found = await asyncio.gather(*(echo(driver, w) for w in words), echo(driver, b"x", b"y"))
        assert found == [*words, [b"x", b"y"]]
        assert (server.connections, len(cuts)) == (made + 1, 1)
        assert server.times(b"ECHO", b"0") == 2


@in_event_loop
async def test_without_patience_each_task_has_the_error_of_a_broken_line(server: FakeServer):
    """Each error is an object of its own, and the next call has a new connection."""
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


@pytest.mark.parametrize("error", ["READONLY a replica", "LOADING the data", "MASTERDOWN x"])
@in_event_loop
async def test_an_error_that_spoils_the_line_leaves_the_others_their_answers(
    error: str, server: FakeServer
):
    """Only what was refused is repeated, on a new connection; the old one gets no more calls."""
    says = Says(hold=b"last")

    def refuse(words: list[bytes]) -> Any:
        if words[-1] == b"bad":
            server.say = says
            return Refusal(error)
        return says(words)

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


@in_event_loop
async def test_a_line_is_given_up_once(server: FakeServer):
    """Its last replies do not count as news of the server, and the new connection stays."""
    says, refused = Says(hold=b"long"), {b"bad", b"late"}

    def refuse(words: list[bytes]) -> Any:
        answer = says(words)
        if answer in refused:
            refused.remove(answer)
            return Refusal("READONLY a replica")
        return answer

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


@pytest.mark.parametrize("error", ["WRONGTYPE no list", "NOPERM no", "ERR unknown"])
@in_event_loop
async def test_an_error_of_a_call_alone_leaves_the_line_as_it_is(error: str, server: FakeServer):
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


@in_event_loop
async def test_a_line_that_has_to_log_in_again_is_made_anew(server: FakeServer):
    """The user's password may have changed: the refusal is raised, the next call logs in."""
    async with connected(server) as driver:
        made = server.connections
        server.say = lambda _: Refusal("NOAUTH Authentication required.")
        with pytest.raises(RedisUnfit):
            await echo(driver, b"a")
        server.say = Says()
        assert await echo(driver, b"b") == b"b"
        assert server.connections == made + 1


@in_event_loop
async def test_a_server_that_stops_answering_is_left_by_all(server: FakeServer):
    """No task waits for longer than one reply may take."""
    says = server.say = Says(hold=b"0")
    async with connected(server, patience_s=0, timeout_s=0.3) as driver:
        asked = (echo(driver, b"%d" % i) for i in range(20))
        found = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
        assert {type(error) for error in found} == {RedisUnreachable}
        assert "Timeout reading" in str(found[-1])
        says.go.set()
        assert await echo(driver, b"next") == b"next"


@in_event_loop
async def test_a_loop_that_was_away_reads_before_it_gives_up(server: FakeServer):
    """Our own process may have been stopped, and not the server."""
    says = server.say = Says(hold=b"a")
    async with connected(server, patience_s=0, timeout_s=60) as driver:
        shared = shared_by(driver)
        task = asyncio.create_task(echo(driver, b"a"))
        await until(lambda: server.times(b"ECHO", b"a"))
        shared._last_byte_at -= 100
        shared._check_timeout()
        says.go.set()
        assert await task == b"a"
        assert shared_by(driver) is shared
        await until(lambda: shared._timer is None)  # the second check is over
        assert shared_by(driver) is shared


@in_event_loop
async def test_an_idle_line_is_not_taken_for_one_without_answers(server: FakeServer):
    """The time counts from the moment when something was sent."""
    says = server.say = Says(hold=b"a")
    async with connected(server, patience_s=0, timeout_s=60) as driver:
        shared = shared_by(driver)
        shared._last_byte_at -= 100
        task = asyncio.create_task(echo(driver, b"a"))
        await until(lambda: server.times(b"ECHO", b"a"))
        assert shared.loop.time() - shared._last_byte_at < 50
        says.go.set()
        assert await task == b"a"


@in_event_loop
async def test_a_driver_that_is_closed_waits_for_the_answers_on_their_way(server: FakeServer):
    says = server.say = Says(hold=b"a")
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


def cut_at(server: FakeServer, word: bytes, *, after: threading.Event) -> Any:
    """Answers until it receives this word: then it closes the connection."""

    def say(words: list[bytes]) -> Any:
        if words[-1] == word:
            assert after.wait(PATIENCE_S)
            server.say = Says()
            raise ConnectionResetError
        return words[-1]

    return say


@in_event_loop
async def test_what_was_answered_before_the_line_broke_is_not_sent_again(server: FakeServer):
    has_come = threading.Event()
    async with connected(server) as driver:
        shared = shared_by(driver)
        server.say = cut_at(server, b"c", after=has_come)
        task = asyncio.create_task(echo(driver, b"a", b"b", b"c", b"d"))
        await until(lambda: len(shared._replies) == 2)
        has_come.set()
        assert await task == [b"a", b"b", b"c", b"d"]
        assert [server.times(b"ECHO", word) for word in (b"a", b"b", b"c")] == [1, 1, 2]


@in_event_loop
async def test_after_half_a_reply_only_the_rest_is_sent_on_a_new_line(server: FakeServer):
    says = Says(hold=b"b")
    async with connected(server, timeout_s=0.3) as driver:
        server.say = says
        asking = asyncio.create_task(echo(driver, b"a", b"b"))
        await until(lambda: not shared_by(driver))
        says.go.set()
        assert await asking == [b"a", b"b"]
        assert [server.times(b"ECHO", word) for word in (b"a", b"b")] == [1, 2]


@in_event_loop
async def test_time_in_which_nothing_was_sent_yet_is_not_the_servers_silence(server: FakeServer):
    """A handler may compute for long between a call and the end of its turn."""
    async with connected(server, patience_s=0, timeout_s=60) as driver:
        shared = shared_by(driver)
        for word in (b"x", b"y"):
            before = shared.loop.time()
            asked = shared.ask(b"*2\r\n$4\r\nECHO\r\n$1\r\n%b\r\n" % word)
            shared._last_byte_at = before - 100
            await asyncio.sleep(0)  # the turn ends: it is sent
            assert shared._last_byte_at >= before
            assert await asked == word


# ------------------------------------------------------------------ lines that are made


@pytest.fixture
def nodes() -> Iterator[list[FakeServer]]:
    """Yields a cluster of two."""
    with fake_servers(2) as servers:
        for one in servers:
            one.say = Says()
            one.slots = [(MIDDLE, servers[1]), (LAST, servers[0])]
        yield servers


def intend() -> Any:
    return scripts.intend(
        (keys.active("req"), keys.conf("req")), ids=["x"], grace=1, above=0, named="", now=1
    )


@pytest.mark.parametrize("count", [1, 2])
@in_event_loop
async def test_a_forgotten_script_may_be_repeated_while_the_slots_are_unknown(
    count: int, nodes: list[FakeServer]
):
    """It goes to the server that forgot it, whatever else is found meanwhile."""
    async with connected(*nodes) as driver:

        def say(words: list[bytes]) -> Any:
            if words[0] == b"EVAL":
                return [0]
            driver.servers.forget_slots()
            for one in nodes:
                one.slots = []
            return Refusal("NOSCRIPT No matching script.")

        for one in nodes:
            one.say = say
        steps = [intend() for _ in range(count)]
        asked = once(steps[0] if count == 1 else Batch(steps))
        assert await driver.run(asked) == ([0] if count == 1 else [[0]] * count)


@pytest.mark.parametrize("count", [1, 2])
def test_a_forgotten_script_whose_repeat_breaks_off_is_repeated(
    count: int, nodes: list[FakeServer]
):
    left = [3]

    def say(words: list[bytes]) -> Any:
        if words[0] == b"EVALSHA":
            return Refusal("NOSCRIPT No matching script.")
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionResetError
        return [0]

    async def scene(patience_s: float) -> Any:
        async with connected(*nodes, patience_s=patience_s) as driver:
            for one in nodes:
                one.say = say
            steps = [intend() for _ in range(count)]
            return await driver.run(once(steps[0] if count == 1 else Batch(steps)))

    assert asyncio.run(scene(20)) == ([0] if count == 1 else [[0]] * count)
    for one in nodes:
        one.say = Says()
    left[0] = 3
    with pytest.raises(RedisUnreachable):
        asyncio.run(scene(0))


def test_a_line_that_was_sound_all_the_time_is_used_again(nodes: list[FakeServer]):
    """Its server failed another caller: a ping is sent, and no connection is lost."""

    async def scene() -> Any:
        async with connected(*nodes) as driver:
            lines = driver.servers._home_of([Command(b"ECHO", HERE)])
            assert lines is not None
            old = lines.shared
            driver.servers.note_failed(lines)
            assert lines.shared is None
            assert await echo(driver, HERE) == HERE
            assert lines.shared is old
            return old

    old = asyncio.run(scene())
    assert is_closed(old)


@in_event_loop
async def test_the_last_replies_of_an_old_connection_are_no_news(server: FakeServer):
    """Another connection took its place: that one stays, and its server is not distrusted."""
    async with connected(server) as driver:
        lines, old = driver.servers.only, shared_by(driver)
        assert lines is not None
        await lines.close()
        new = await lines.share()
        assert new is not old
        await driver.drop_shared(lines, old, ConnectionError("late"))
        assert (shared_by(driver), new.is_open, old.is_open) == (new, True, False)


def slow_to_log_in(server: FakeServer) -> threading.Event:
    """Delays each new connection until this is set."""
    gate, answer = threading.Event(), server._answer

    def slow(words: list[bytes]) -> Any:
        if words[0] == b"CLIENT":
            assert gate.wait(PATIENCE_S)
        return answer(words)

    server._answer = slow  # type: ignore[method-assign]
    return gate


@in_event_loop
async def test_a_driver_that_is_closed_makes_no_line_any_more(server: FakeServer):
    """Its caller has gone: that connection would never be closed."""
    async with connected(server) as driver:
        await driver.close()
        gate = slow_to_log_in(server)
        made, known = server.connections, server.times(b"CLIENT")
        task = asyncio.create_task(echo(driver, b"y"))
        await until(lambda: server.times(b"CLIENT") > known)
        task.cancel()
        await asyncio.wait([task])
        await driver.close()
        gate.set()
        assert shared_by(driver) is None
        assert server.connections == made + 1
        assert await echo(driver, b"z") == b"z"
        assert server.connections == made + 2


@in_event_loop
async def test_a_task_that_waits_for_a_line_when_the_driver_is_closed_has_another_one(
    server: FakeServer,
):
    """The task is not cancelled, because no caller cancelled it."""
    async with connected(server) as driver:
        await driver.close()
        gate, known = slow_to_log_in(server), server.times(b"CLIENT")
        task = asyncio.create_task(echo(driver, b"y"))
        await until(lambda: server.times(b"CLIENT") > known)
        await driver.close()
        gate.set()
        assert await task == b"y"


@pytest.mark.parametrize("first", ["the line", "the tasks"])
@in_event_loop
async def test_a_task_is_cancelled_with_the_line_it_waits_for(first: str, server: FakeServer):
    """At its end asyncio.run cancels all tasks in any order."""
    async with connected(server, patience_s=60) as driver:
        await driver.close()
        gate, known = slow_to_log_in(server), server.times(b"CLIENT")
        tasks = [asyncio.create_task(echo(driver, b"y")) for _ in range(5)]
        await until(lambda: server.times(b"CLIENT") > known)
        lines = driver.servers.only
        assert lines is not None
        making = lines._making._task
        assert making is not None
        for one in [making, *tasks] if first == "the line" else [*tasks, making]:
            one.cancel()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert {type(error) for error in found} == {asyncio.CancelledError}
        gate.set()


@in_event_loop
async def test_one_call_reads_the_slots_of_a_cluster_for_all_tasks(nodes: list[FakeServer]):
    """This holds however many calls fail because a node is gone."""
    async with connected(*nodes) as driver:
        made = sum(one.connections for one in nodes)
        asked = sum(one.times(b"CLUSTER") for one in nodes)
        driver.servers.forget_slots()
        words = [b"%b%d" % (HERE, i) for i in range(100)]
        assert await asyncio.gather(*(echo(driver, word) for word in words)) == words
        assert sum(one.times(b"CLUSTER") for one in nodes) == asked + 1
        assert sum(one.connections for one in nodes) <= made + 1


@in_event_loop
async def test_a_line_whose_end_came_while_it_was_made_is_not_used(server: FakeServer):
    """Its next caller would not detect the end, and wait."""
    async with connected(server, timeout_s=2) as driver:
        await driver.close()
        lines = driver.servers.only
        assert lines is not None
        make = lines._new

        def ended() -> Any:
            line, lines._new = make(), make  # type: ignore[method-assign]
            connect = line.connect

            async def and_end() -> None:
                await connect()
                server._lines[-1].shutdown(socket.SHUT_WR)
                reader = line._reader
                assert reader is not None
                await until(reader.at_eof)

            line.connect = and_end
            return line

        lines._new = ended  # type: ignore[method-assign]
        assert await echo(driver, b"x") == b"x"
        assert server.times(b"ECHO", b"x") == 1
