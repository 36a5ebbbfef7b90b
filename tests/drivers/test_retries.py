"""Tests retries: a call that Redis can't answer now is sent again, unchanged, until it can."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import InvalidArgument, RedisUnfit, RedisUnreachable
from fairlane.protocol import keys, scripts
from fairlane.protocol.lua import Dialect
from fairlane.protocol.steps import Batch, Command
from tests.support.network.fakes import Refusal, fake_servers
from tests.support.operations.drivers import both, perform
from tests.support.servers import server_process
from tests.support.servers.backends import at
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

LANE = keys.lanes("req")[5]
# Refuses a few times, then accepts; counts its calls.
# (The tag in its first line sends it to the slot of its key: a driver takes it for a key.)
REFUSE = """-- {a}
local asked = redis.call("INCR", KEYS[1])
redis.call("EXPIRE", KEYS[1], 60)
if asked <= 3 then return redis.error_reply(ARGV[1]) end
return asked
"""
MOVED = "15495 127.0.0.1:1"  # a slot and a node
PASSING = (
    *(f"MOVED {MOVED}", f"ASK {MOVED}", "TRYAGAIN Multiple keys request during rehashing of slot"),
    *("CLUSTERDOWN The cluster is down", "LOADING Redis is loading the dataset in memory"),
    *("READONLY You can't write against a read only replica.", "UNBLOCKED force unblock"),
    *("MASTERDOWN Link with MASTER is down", "BUSY Redis is busy running a script"),
    "NOREPLICAS Not enough good replicas to write.",
)


def refusing(error: str) -> Command:
    """Returns a call that is refused three times."""
    return Command(b"EVAL", REFUSE, b"1", "{a}:asked", error)


@pytest.mark.any_command
@both
@pytest.mark.parametrize("error", PASSING, ids=lambda text: text.split()[0])
def test_errors_of_a_moving_cluster_or_a_failover_are_retried(
    kind: str, error: str, redis_url: str
):
    """A slot moves, a node loads, a primary is demoted: the operation continues."""
    assert perform(kind, redis_url, refusing(error), patience_s=20) == 4


@pytest.mark.any_command
@both
def test_what_is_wrong_for_good_is_not_repeated(
    kind: str, redis_url: str, redis_client: redis.Redis
):
    with pytest.raises(RedisUnfit, match="WRONGTYPE"):
        perform(kind, redis_url, refusing("WRONGTYPE for good"), patience_s=20)
    assert redis_client.get("{a}:asked") == b"1"


@both
def test_a_pop_that_is_thrown_out_pops_again(kind: str, redis_url: str, redis_client: redis.Redis):
    """A demoted primary answers UNBLOCKED to all that wait; they get the next token."""
    got: list[Any] = []
    pop = Command(b"BRPOP", LANE, 30)
    thread = threading.Thread(
        target=lambda: got.append(perform(kind, redis_url, pop, patience_s=20))
    )
    thread.start()
    home = at(redis_client, LANE)
    wait_until(lambda: blocked(home), why="it waits")
    (first,) = blocked(home)
    home.client_unblock(int(first), error=True)
    wait_until(lambda: set(blocked(home)) - {first}, why="it waits again")
    redis_client.lpush(LANE, "r1#0.1")
    thread.join(20)
    assert got == [[LANE, b"r1#0.1"]]


def blocked(client: redis.Redis) -> list[str]:
    """Returns the clients that wait in a pop."""
    return [one["id"] for one in client.client_list() if "b" in one["flags"]]


@pytest.fixture
def stopped() -> Iterator[server_process.Server]:
    """Stops a server: connections stay open, and no reply comes."""
    with server_process.run_server("single") as server:
        yield server
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.rest
@pytest.mark.server
@both
def test_a_server_that_stops_answering_holds_up_no_call_for_ever(
    kind: str, stopped: server_process.Server
):
    """Neither a blocking pop nor a call hangs; when it continues, the next call is answered."""
    pop = Command(b"BRPOP", LANE, 1)
    assert perform(kind, stopped.url, pop, patience_s=0, timeout_s=5) is None
    os.kill(stopped.pid, signal.SIGSTOP)
    for step in (pop, Command(b"TIME")):
        with pytest.raises(RedisUnreachable, match="does not answer"):
            perform(kind, stopped.url, step, patience_s=0, timeout_s=0.5)
    os.kill(stopped.pid, signal.SIGCONT)
    assert perform(kind, stopped.url, pop, patience_s=0, timeout_s=5) is None


def test_a_pop_ends_before_its_connection_is_given_up():
    """Otherwise every idle pop would look like a server that stopped answering."""
    assert 0 < 2 * settings.BLOCK_MS / 1000 < settings.SOCKET_TIMEOUT_S


class Cut:
    """Cuts the connection before the first `most` replies to scripts; later it answers 1."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, words: list[bytes]) -> Any:
        if words[0] == b"EVALSHA" and self.most:
            self.most -= 1
            raise OSError
        return 1


ONCE = scripts.refund((keys.bucket("r1"),), interval=1, burst=1, weight=1, unused=1)
REPEATED = scripts.take((keys.bucket("r1"),), interval=1, burst=1, weight=1, want=1, waited="")


@both
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with others"])
def test_a_call_whose_repeat_has_another_effect_is_sent_at_most_once(kind: str, *, is_alone: bool):
    """The others of its batch are repeated; its own reply is None."""
    with fake_servers(1) as (server,):
        url = f"redis://127.0.0.1:{server.port}"
        server.say = Cut(1)
        step = ONCE if is_alone else Batch([ONCE, REPEATED])
        reply = perform(kind, url, step, patience_s=20)
        sent = [words[1] for words in server.received if words[0] == b"EVALSHA"]
        assert sent.count(ONCE.script.shas[Dialect.SINGLE]) == 1
        assert reply == (None if is_alone else [None, 1])


@both
def test_a_refusal_of_a_call_that_is_sent_once_is_its_error(kind: str):
    with fake_servers(1) as (server,):
        server.say = lambda _: Refusal("BADARGUMENT wrong")
        with pytest.raises(InvalidArgument, match="BADARGUMENT"):
            perform(kind, f"redis://127.0.0.1:{server.port}", ONCE, patience_s=20)
