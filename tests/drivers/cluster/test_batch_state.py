"""Tests batches on replies that real servers rarely send, by both drivers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.drivers import aio as aio_connections
from fairlane.drivers import sync as sync_connections
from fairlane.errors import RedisUnfit, RedisUnreachable
from fairlane.operations import tokens
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import Batch, Command
from tests.support.network.fakes import FakeServer, Refusal, fake_servers
from tests.support.operations.drivers import both
from tests.support.operations.lines import HERE, LAST, MIDDLE, THERE
from tests.support.scripts.requests import once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.operations.actor import Actor

DOWN = Refusal("CLUSTERDOWN The cluster is down")
ON_THE_MOVE = Refusal("TRYAGAIN Multiple keys request during rehashing of slot")


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    """Yields two servers of a cluster, of which the first one serves all slots."""
    with fake_servers(2) as made:
        yield made


# ------------------------------------------------------------------ broken connections


@both
@pytest.mark.parametrize("error", ["READONLY a replica", "MASTERDOWN", "UNBLOCKED force", "BUSY x"])
def test_a_name_leads_elsewhere_after_its_server_was_demoted(
    kind: str, error: str, act: Callable[..., Actor]
):
    """A batch has a new connection, too: the name may by then lead to the new primary."""
    with fake_servers(1) as (server,):
        actor = act(kind, server)
        batch = Batch([Command(b"SET", b"a", 1), Command(b"SET", b"b", 1)])
        assert actor.run(once(batch)) == [1, 1]
        made = server.connections
        server.say = lambda _: Refusal(error) if server.connections == made else 2
        assert actor.run(once(batch)) == [2, 2]
        assert server.connections == made + 1


@both
def test_a_sound_connection_stays_when_a_slot_has_moved(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer]
):
    old, new = servers
    actor = act(kind, old, new)
    actor.run(once(Command(b"GET", HERE)))
    made = old.connections
    old.say = lambda _: Refusal(f"MOVED 11298 127.0.0.1:{new.port}")
    old.slots = new.slots = [(LAST, new)]
    assert actor.run(once(Command(b"GET", HERE))) == 1
    assert (old.connections, old.times(b"GET")) == (made, 2)


# ------------------------------------------------------------------ the choice of a node


@both
@pytest.mark.parametrize("is_named", [True, False])
def test_a_primary_that_is_cut_off_is_called_last(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer], *, is_named: bool
):
    """It reports that it serves all slots, and that the cluster is down; the others are right."""
    old, new = servers
    old.slots = [(MIDDLE, new), (LAST, old)]
    actor = act(kind, old, *([new] if is_named else []))
    assert actor.run(once(Command(b"GET", HERE))) == 1
    old.say, new.say = (lambda _: DOWN), (lambda _: 2)
    new.slots = [(LAST, new)]
    assert actor.run(once(Command(b"GET", HERE))) == 2
    assert old.times(b"GET") == 2


@both
def test_a_slow_node_is_tried_for_longer_each_time(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
):
    """A try that was too short makes the next one longer."""
    monkeypatch.setattr(settings, "FIRST_RETRY_TIMEOUT_S", 0.02)
    slow, _ = servers
    actor = act(kind, slow)
    actor.run(once(Command(b"GET", HERE)))
    lines = actor.driver.servers.lines_at(("127.0.0.1", slow.port))
    actor.driver.servers.note_failed(lines)
    slow.delay_s = 0.1
    assert actor.run(once(Command(b"GET", HERE))) == 1
    assert not lines.probes_first
    actor.driver.servers.note_failed(lines)
    slow.delay_s = 0.0
    assert lines.briefly({})["socket_timeout"] == 0.02, "it has answered"


# ------------------------------------------------------------------ steps on their own


def lanes_on_the_move(words: list[bytes]) -> Any:
    """Commands of one key are answered; a pop of many is not."""
    match words[0]:
        case b"LLEN":
            return 1
        case b"RPOP":
            return [b"r1#0.1"]
        case b"GET":
            return b"x"
    return ON_THE_MOVE


@both
def test_the_other_way_is_taken_before_anything_is_waited_for(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer]
):
    """One of the batch's other steps may have to wait long."""
    here, there = servers
    here.slots = there.slots = [(MIDDLE, there), (LAST, here)]
    here.say = lanes_on_the_move
    there.say = lambda _: 7 if here.times(b"RPOP") else DOWN
    actor = act(kind, here)
    popped, seen = actor.run(once(Batch([tokens.pop_ahead("req", 3, 1), Command(b"GET", THERE)])))
    assert (popped.tokens, seen) == ([b"r1#0.1"], 7)


@both
@pytest.mark.parametrize(
    ("says", "error"), [(DOWN, RedisUnreachable), (Refusal("WRONGTYPE no list"), RedisUnfit)]
)
def test_another_way_that_fails_costs_its_step_only(
    kind: str, says: Refusal, error: type, act: Callable[..., Actor], servers: list[FakeServer]
):
    """In a lenient batch only its step fails; and it has only the time that is left."""
    server, _ = servers
    server.say = lambda words: {b"GET": b"x", b"LLEN": says}.get(words[0], ON_THE_MOVE)
    actor = act(kind, server, patience_s=2)
    steps = [tokens.pop_ahead("req", 3, 1), Command(b"GET", HERE)]
    began = time.monotonic()
    failed, seen = actor.run(once(Batch(steps, lenient=True)))
    assert (type(failed), seen) == (error, b"x")
    assert time.monotonic() - began < 3.9, "twice the patience"
    with pytest.raises(error):
        actor.run(once(Batch(steps)))


@both
def test_a_batch_may_have_a_patience_of_its_own(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer]
):
    """It is shorter than the driver's, because what was answered must not wait."""
    here, there = servers
    here.slots = there.slots = [(MIDDLE, there), (LAST, here)]
    there.say = lambda _: DOWN
    actor = act(kind, here, patience_s=600)
    steps = [Command(b"GET", HERE), Command(b"GET", THERE)]
    seen, failed = actor.run(once(Batch(steps, lenient=True, patience_s=0.1)))
    assert (seen, type(failed)) == (1, RedisUnreachable)
    with pytest.raises(RedisUnreachable):
        actor.run(once(Batch(steps, patience_s=0.1)))


@both
def test_a_lenient_batch_waits_for_the_rest_for_a_short_time_only(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer], monkeypatch: Any
):
    """A lease that was answered does not wait; with no answer the batch is patient."""
    monkeypatch.setattr(settings, "BATCH_REST_S", 0.2)
    here, there = servers
    here.slots = there.slots = [(MIDDLE, there), (LAST, here)]
    actor = act(kind, here, there)
    steps = [Command(b"GET", HERE), Command(b"GET", THERE)]
    here.say = there.say = lambda _: DOWN
    began = time.monotonic()
    with pytest.raises(RedisUnreachable):
        actor.run(once(Batch(steps, lenient=True, patience_s=0.6)))
    assert time.monotonic() - began > 0.5
    here.say = lambda _: 1
    found = actor.run(once(Batch(steps, lenient=True)))
    assert (found[0], type(found[1])) == (1, RedisUnreachable)


@both
@pytest.mark.parametrize("word", ["MOVED", "ASK"])
@pytest.mark.parametrize("clock_first", [True, False])
def test_a_clock_is_read_where_the_step_beside_it_is_answered(
    kind: str, word: str, act: Callable[..., Actor], servers: list[FakeServer], *, clock_first: bool
):
    """Two nodes' clocks differ; TIME has no key that would send it after the slot."""
    old, new = servers

    def refuse(words: list[bytes]) -> Any:
        if words[0] == b"TIME":
            return [1, 1]
        old.slots = new.slots = [(LAST, new if word == "MOVED" else old)]
        return Refusal(f"{word} 11298 127.0.0.1:{new.port}")

    old.say, new.say = refuse, lambda words: [2, 2] if words[0] == b"TIME" else 5
    actor = act(kind, old, new)
    steps = [Command(b"ZCARD", HERE), Command(b"TIME")]
    found = actor.run(once(Batch(steps[::-1] if clock_first else steps)))
    assert found == ([[2, 2], 5] if clock_first else [5, [2, 2]])
    assert new.times(b"ASKING") == (2 if word == "ASK" else 0)


# ------------------------------------------------------------------ what is reported


@both
def test_only_a_broken_connection_is_reported_as_one(
    kind: str, act: Callable[..., Actor], servers: list[FakeServer]
):
    """A token may be lost with it. Before every repeat the caller decides whether to continue."""
    server, _ = servers
    actor = act(kind, server)
    actor.run(once(Command(b"GET", HERE)))
    reported: list[str] = []
    actor.driver.on_cut = lambda: reported.append("cut")

    def give_up() -> bool:
        reported.append("asked")
        return False

    actor.driver.give_up = give_up
    answers: list[Any] = [ON_THE_MOVE, DOWN, ON_THE_MOVE, 3]
    server.say = lambda _: answers.pop(0)
    assert actor.run(once(Command(b"GET", HERE))) == 3
    assert reported == ["asked"] * 3
    del reported[:]

    def cut(_: list[bytes]) -> Any:
        server.say = lambda _: 4
        raise ConnectionResetError

    server.say = cut
    assert actor.run(once(Command(b"GET", HERE))) == 4
    assert reported == ["cut", "asked"]


@both
def test_a_server_that_is_not_there_cuts_nothing(kind: str, act: Callable[..., Actor]):
    with fake_servers(1) as (server,):
        actor = act(kind, server, patience_s=0.1)
        actor.check()
    with pytest.raises(RedisUnreachable):
        actor.run(once(Command(b"GET", HERE)))  # the connection broke
    reported: list[str] = []
    actor.driver.on_cut = lambda: reported.append("cut")
    with pytest.raises(RedisUnreachable):
        actor.run(once(Command(b"GET", HERE)))
    assert reported == []


# ------------------------------------------------------------------ versions


@both
@pytest.mark.parametrize("at", [0, 1])
def test_one_primary_that_is_too_old_makes_the_cluster_unfit(
    kind: str, at: int, act: Callable[..., Actor], servers: list[FakeServer]
):
    """It does not if that primary is unreachable."""
    servers[at].version = "6.2.14"
    for server in servers:
        server.slots = [(MIDDLE, servers[1]), (LAST, servers[0])]
    with pytest.raises(RedisUnfit, match=r"version 6\.2\.14, which is too old"):
        act(kind, servers[0]).check()
    servers[at].close()
    assert act(kind, servers[1 - at]).check() is Dialect.CLUSTER


# ------------------------------------------------------------------ threads


kinds_of_servers = pytest.mark.parametrize(
    "kind", [sync_connections.Servers, aio_connections.Servers]
)


@kinds_of_servers
def test_a_node_may_be_added_while_another_one_fails(kind: Any):
    """Threads share a driver."""
    servers = kind("redis+cluster://127.0.0.1:1", 1.0)

    class Adding(dict[Any, Any]):
        """While a node is noted, another thread meets a new node."""

        def __setitem__(self, name: Any, value: Any) -> None:
            servers.lines_at(("127.0.0.1", 2))

    servers._asked_last = Adding()
    servers.note_failed(servers.lines_at(("127.0.0.1", 1)))
    assert set(servers._nodes) == {("127.0.0.1", 1), ("127.0.0.1", 2)}


@kinds_of_servers
def test_the_slots_may_be_forgotten_while_a_home_is_looked_for(kind: Any):
    """Threads share a driver."""

    class Flickering(kind):  # type: ignore[misc]
        """Another thread forgets them after the first read."""

        @property
        def _map(self) -> Any:
            return looks.pop()

        @_map.setter
        def _map(self, _: Any) -> None:
            return

    class Everywhere:
        def home(self, _: bytes) -> tuple[str, int]:
            return "127.0.0.1", 1

    looks: list[Any] = [None, Everywhere()]
    assert Flickering("redis+cluster://127.0.0.1:1", 1.0).home(b"x") == ("127.0.0.1", 1)
