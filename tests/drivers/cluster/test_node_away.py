"""Tests both drivers while one node of a cluster is unreachable: only its own steps wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import NodeAway, RedisUnreachable
from fairlane.protocol.steps import Batch, Command, Confirm
from tests.support.network.fakes import FakeServer, Refusal, fake_servers
from tests.support.operations.lines import HERE, LAST, MIDDLE, THERE
from tests.support.scripts.requests import once
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.operations.actor import Actor

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])
AWAY_S = 0.3
NEVER = (600.0, 600.0)
BUSY = Refusal("LOADING Redis is loading the dataset in memory")


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    """Yields two primaries: the second one serves the lower half of the slots."""
    with fake_servers(2) as made:
        first, second = made
        first.slots = second.slots = [(MIDDLE, second), (LAST, first)]
        yield made


@pytest.fixture
def actor(kind: str, act: Callable[..., Actor], servers: list[FakeServer]) -> Actor:
    """Makes a driver of one kind that has both primaries in its URL."""
    return act(kind, *servers)


def cut(_: list[bytes]) -> Any:
    """Closes the connection instead of sending a reply."""
    raise ConnectionResetError


def refuse(_: list[bytes]) -> Any:
    """Replies that no command can run now."""
    return BUSY


def both_gets(**options: Any) -> Batch:
    """Returns one step for each of the two nodes."""
    steps = [Command(b"GET", HERE), Command(b"GET", THERE)]
    return Batch(steps, lenient=True, away_s=AWAY_S, **options)


def call_until_away(actor: Actor) -> None:
    """Sends batches until the second node counts as away.

    The time of a batch begins before the node's first failure, so one batch may not be enough.
    """
    wait_until(lambda: "tried again soon" in str(actor.run(once(both_gets()))[1]))


@pytest.mark.parametrize("fault", [cut, refuse])
def test_its_steps_are_given_up_and_not_sent_any_more(
    fault: Callable[[list[bytes]], Any],
    actor: Actor,
    servers: list[FakeServer],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(settings, "AWAY_AGAIN_S", NEVER)
    servers[1].say = fault
    began = time.monotonic()
    reply, error = actor.run(once(both_gets()))
    assert reply == 1
    assert isinstance(error, NodeAway)
    assert AWAY_S <= time.monotonic() - began < 20
    call_until_away(actor)
    asked = servers[1].times(b"GET")
    assert asked > 1
    for _ in range(3):
        reply, error = actor.run(once(both_gets()))
        assert (reply, type(error)) == (1, NodeAway)
        assert error.away_s >= AWAY_S
    assert servers[1].times(b"GET") == asked


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with others"])
def test_its_error_reports_whether_a_step_was_sent(
    actor: Actor, servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch, *, is_alone: bool
):
    """A node that hangs may run it later; a step that was given up before it was sent is lost."""
    monkeypatch.setattr(settings, "AWAY_AGAIN_S", NEVER)
    servers[1].say = cut
    batch = both_gets()
    if is_alone:
        batch = Batch([Command(b"GET", THERE)], lenient=True, away_s=AWAY_S)

    def error() -> Any:
        try:
            return actor.run(once(batch))[-1]
        except NodeAway as raised:
            return raised

    assert error().was_sent
    call_until_away(actor)
    assert [error().was_sent for _ in range(2)] == [False, False]


def test_it_is_tried_again_until_it_answers(
    actor: Actor, servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "AWAY_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr("fairlane.drivers.topology._PAUSE_PER_TRY", 0)
    servers[1].say = cut
    call_until_away(actor)
    asked = servers[1].times(b"GET")
    _, error = actor.run(once(both_gets()))
    assert isinstance(error, NodeAway)
    assert servers[1].times(b"GET") == asked + 1
    servers[1].say = lambda _: 2
    assert actor.run(once(both_gets())) == [1, 2]
    monkeypatch.setattr(settings, "AWAY_AGAIN_S", NEVER)
    assert actor.run(once(both_gets())) == [1, 2]


def test_a_step_alone_is_given_up_too(
    actor: Actor, servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "AWAY_AGAIN_S", NEVER)
    servers[1].say = cut
    step = Command(b"GET", THERE)
    step.away_s = AWAY_S
    for one in (step, Batch([step], lenient=True, away_s=AWAY_S), step):
        with pytest.raises(NodeAway):
            actor.run(once(one))


def test_a_write_to_be_confirmed_is_given_up_too(actor: Actor, servers: list[FakeServer]):
    servers[1].say = cut
    step = Command(b"GET", THERE)
    step.away_s = AWAY_S
    with pytest.raises(NodeAway):
        actor.run(once(Confirm(step, 1)))


def test_what_is_patient_waits_for_it(actor: Actor, servers: list[FakeServer]):
    """This holds also if others have given it up; its reply ends the outage of the node."""
    servers[1].say = cut
    assert isinstance(actor.run(once(both_gets()))[1], NodeAway)
    asked = servers[1].times(b"GET")

    def after_a_while(words: list[bytes]) -> Any:
        return 2 if servers[1].times(b"GET") > asked + 3 else cut(words)

    servers[1].say = after_a_while
    assert actor.run(once(Command(b"GET", THERE))) == 2
    assert actor.run(once(both_gets())) == [1, 2]


def test_a_call_with_more_time_waits_though_others_gave_up(actor: Actor, servers: list[FakeServer]):
    """A settlement outlasts a failover which is too long for an acquire."""
    servers[1].say = cut
    assert isinstance(actor.run(once(both_gets()))[1], NodeAway)
    asked = servers[1].times(b"GET")
    servers[1].say = lambda words: 2 if servers[1].times(b"GET") > asked + 3 else cut(words)
    step = Command(b"GET", THERE)
    step.away_s = 60.0
    assert actor.run(once(step)) == 2


def test_a_replica_that_took_over_is_found(
    actor: Actor, servers: list[FakeServer], monkeypatch: pytest.MonkeyPatch
):
    """The slots are read while the old node is away, though that node is not tried again."""
    monkeypatch.setattr(settings, "AWAY_AGAIN_S", NEVER)
    monkeypatch.setattr(settings, "SLOTS_AGAIN_S", 0.0)
    servers[1].say = cut
    actor.run(once(both_gets()))
    servers[0].slots = servers[1].slots = [(LAST, servers[0])]
    actor.run(once(both_gets()))
    assert actor.run(once(both_gets())) == [1, 1]


def test_a_single_server_is_waited_for(kind: str, act: Callable[..., Actor]):
    with fake_servers(1) as (server,):
        began = time.monotonic()
        server.say = lambda words: 2 if time.monotonic() > began + 3 * AWAY_S else cut(words)
        assert act(kind, server).run(once(both_gets())) == [2, 2]


def test_an_error_of_a_step_is_still_its_own(actor: Actor, servers: list[FakeServer]):
    """A node that refuses permanently is not away."""
    servers[1].say = lambda _: Refusal("WRONGTYPE for good")
    _, error = actor.run(once(both_gets()))
    assert not isinstance(error, RedisUnreachable)
    assert servers[1].times(b"GET") == 1
