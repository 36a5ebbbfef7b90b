"""Tests that a driver's first contact is as patient as later calls, but repeats no mistake."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.drivers.driver import FirstContact
from fairlane.errors import FairlaneError, RedisUnfit, RedisUnreachable
from fairlane.protocol.steps import Batch, Command
from tests.support.network.fakes import FakeServer, Refusal, fake_servers
from tests.support.operations.drivers import both, perform
from tests.support.operations.lines import LAST
from tests.support.scripts.requests import once
from tests.support.servers.server_process import free_ports, run_server
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.operations.actor import Actor

LONG_S = 60.0  # a mistake that was repeated would be seen
LOADING = "LOADING Redis is loading the dataset in memory"


class Starting(FakeServer):
    """A server that answers its first INFOs with an error."""

    refusals = 3

    def _answer(self, words: list[bytes]) -> Any:
        if words[0] == b"INFO" and self.times(b"INFO") <= self.refusals:
            return Refusal(LOADING)
        return super()._answer(words)


@both
@pytest.mark.parametrize(
    "step", [Command(b"GET", b"a"), Batch([Command(b"GET", b"a")])], ids=["one step", "a batch"]
)
def test_a_server_that_loads_is_waited_for(kind: str, step: Any, act: Callable[..., Actor]):
    with contextlib.closing(Starting()) as server:
        assert act(kind, server).run(once(step)) in (1, [1])
        assert server.times(b"INFO") == Starting.refusals + 1


@both
def test_a_cluster_that_loads_is_waited_for(kind: str, act: Callable[..., Actor]):
    """Each of its tries calls another node, and then there are pauses."""
    with contextlib.closing(Starting()) as server:
        server.slots, server.refusals = [(LAST, server)], 6
        assert act(kind, server).run(once(Command(b"GET", b"a"))) == 1
        assert server.times(b"INFO") == 7


@both
@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_a_server_that_is_not_there_yet_is_waited_for(
    kind: str, scheme: str, monkeypatch: pytest.MonkeyPatch
):
    """A producer and its Redis may be started together."""
    (port,) = free_ports(1)
    got: list[Any] = []
    has_failed = threading.Event()
    pause = FirstContact.pause

    def noted(self: FirstContact, error: Exception) -> float | None:
        has_failed.set()
        return pause(self, error)

    monkeypatch.setattr(FirstContact, "pause", noted)
    url = f"{scheme}://127.0.0.1:{port}"

    def ask() -> None:
        got.append(perform(kind, url, Command(b"GET", b"a"), patience_s=LONG_S))

    thread = threading.Thread(target=ask)
    thread.start()
    assert has_failed.wait(PATIENCE_S)
    with contextlib.closing(FakeServer(port=port, is_cluster=scheme == "redis+cluster")):
        thread.join(PATIENCE_S)
    assert got == [1]


@both
def test_a_node_that_serves_no_slot_yet_is_waited_for(
    kind: str, monkeypatch: pytest.MonkeyPatch, act: Callable[..., Actor]
):
    """It listens and answers, but its cluster is not made yet: CLUSTER SLOTS is empty."""
    with contextlib.closing(FakeServer(is_cluster=True)) as server:
        server.slots = []
        failures: list[str] = []
        pause = FirstContact.pause

        def noted(self: FirstContact, error: Exception) -> float | None:
            failures.append(str(error))
            if len(failures) == 2:
                server.slots = [(LAST, server)]
            return pause(self, error)

        monkeypatch.setattr(FirstContact, "pause", noted)
        assert act(kind, server, patience_s=LONG_S).run(once(Command(b"GET", b"a"))) == 1
        assert len(failures) >= 2


@both
def test_patience_is_not_spent_twice(kind: str):
    (port,) = free_ports(1)
    began = time.monotonic()
    with pytest.raises(RedisUnreachable):
        perform(kind, f"redis://127.0.0.1:{port}", Command(b"GET", b"a"), patience_s=0.5)
    assert 0.4 < time.monotonic() - began < 10


@both
@pytest.mark.parametrize("step", [Command(b"GET", b"a"), Batch([Command(b"GET", b"a")])])
def test_a_host_without_an_address_is_a_mistake(kind: str, step: Any):
    began = time.monotonic()
    with pytest.raises(RedisUnreachable, match="does not answer"):
        perform(kind, "redis://nowhere.invalid:6379", step, patience_s=LONG_S)
    assert time.monotonic() - began < LONG_S


@both
@pytest.mark.parametrize("url", ["redis://:wrong@{}", "redis+cluster://{}"])
def test_a_wrong_password_and_no_cluster_are_mistakes(kind: str, url: str):
    began = time.monotonic()
    with run_server("single") as server, pytest.raises(FairlaneError) as raised:
        perform(
            kind, url.format(f"127.0.0.1:{server.port}"), Command(b"GET", b"a"), patience_s=LONG_S
        )
    assert isinstance(raised.value, RedisUnfit)
    assert time.monotonic() - began < LONG_S


@both
def test_a_check_makes_one_try_unless_it_has_patience(kind: str, act: Callable[..., Actor]):
    with contextlib.closing(Starting()) as server:
        actor = act(kind, server, patience_s=LONG_S)
        with pytest.raises(RedisUnreachable, match="does not answer"):
            actor.check()
        assert server.times(b"INFO") == 1
        actor._wait(actor.driver.check(LONG_S))
        assert server.times(b"INFO") == Starting.refusals + 1


@both
def test_a_driver_that_gives_up_waits_no_longer(kind: str, act: Callable[..., Actor]):
    with fake_servers(1) as (server,):
        actor = act(kind, server, patience_s=LONG_S)
        actor.driver.give_up = lambda: True
    began = time.monotonic()
    with pytest.raises(RedisUnreachable):
        actor.run(once(Command(b"GET", b"a")))
    assert time.monotonic() - began < LONG_S
