"""Tests durable=N: acknowledged means that N replicas have it; errors name the rest."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import aio, settings
from fairlane.drivers import calls, error_mapping
from fairlane.errors import FairlaneError, NotDurable, RedisUnfit, RequestEnded, RequestLost
from fairlane.operations import durability, lease, tokens, workers
from fairlane.operations.audit import Audit
from fairlane.operations.submit import submit
from fairlane.options import Policy
from fairlane.protocol import keys
from fairlane.protocol.steps import Command, Confirm, Confirmed, NextChunk
from fairlane.queue import Queue
from tests.support.both_faces import as_blocking, both_faces, is_asyncio
from tests.support.processes.workers import broken
from tests.support.scripts.requests import cut, next_slice, numbered, once, stored, work_off
from tests.support.servers import server_process
from tests.support.servers.backends import WITH_REPLICAS
from tests.support.servers.replicas import Pair, in_step, run_pair
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers.backends import Backend

pytestmark = pytest.mark.server
KINDS = ["single", "system_redis"]
THREE = [[b"a", b"b"], [b"c"], [b"d", b"e"]]


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Yields a pair for the tests that do not kill it."""
    server_process.skip_unless_there(request.param)
    with run_pair(request.param) as made:
        yield made


@pytest.fixture
def pair(shared: Pair) -> Pair:
    """Yields an empty pair."""
    with contextlib.closing(shared.primary.client()) as client:
        client.flushall()
        wait_until(lambda: in_step(client), why="the replica is in step")
    return shared


@pytest.fixture(params=KINDS)
def mortal(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Yields a pair whose primary will be killed."""
    server_process.skip_unless_there(request.param)
    with run_pair(request.param) as made:
        yield made


@pytest.fixture
def queue(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Queue]:
    """Makes the queue on the pair's primary."""
    with Queue.from_url(pair.primary.url) as made:
        if not is_asyncio(request):
            yield made
            return
        with as_blocking(aio.Queue.from_url(pair.primary.url), made.driver) as awaited:
            yield awaited


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives replicas 400 ms."""
    monkeypatch.setattr(settings, "CONFIRM_MS", 400)


# ------------------------------------------------------------------ submission


def test_a_durable_submission_is_on_the_replica_when_it_is_acknowledged(queue: Queue, pair: Pair):
    queue.submit_request(numbered(2500), id="r1", durable=1)
    with contextlib.closing(pair.replica.client()) as replica:
        assert stored(replica, "r1")["total"] == "2500"
        assert stored(replica, "r1")["open"] == "0"
        assert replica.llen("{req}:5") == 3


@both_faces
@pytest.mark.usefixtures("short")
def test_a_replica_that_does_not_answer_is_named_and_the_request_goes_on(queue: Queue, pair: Pair):
    with pair.frozen():
        with pytest.raises(NotDurable) as caught:
            queue.submit_request(numbered(3), id="r1", durable=1)
        assert caught.value.exit_code == 5
        assert str(caught.value) == (
            "request r1 is submitted and will run, but only 0 of 1 replica confirmed it within "
            "0.4 s: a failover now may lose it; submit the same again with the same id to confirm "
            "it"
        )
        assert sorted(work_off(queue.driver)) == numbered(3)
    assert queue.request("r1").wait(PATIENCE_S) == "done"


@pytest.mark.usefixtures("short")
def test_the_same_again_confirms(queue: Queue, pair: Pair):
    """A repeat writes nothing new, but it writes: WAIT has something to wait for."""
    for bodies in (numbered(3), numbered(2500)):
        name = f"r{len(bodies)}"
        with pair.frozen():
            for _ in range(2):
                with pytest.raises(NotDurable):
                    queue.submit_request(bodies, id=name, durable=1)
        queue.submit_request(bodies, id=name, durable=1)
        with contextlib.closing(pair.replica.client()) as replica:
            assert stored(replica, name)["total"] == str(len(bodies))


def test_more_replicas_than_there_are_is_refused_immediately(queue: Queue, pair: Pair):
    pulled = []

    def bodies() -> Iterator[bytes]:
        pulled.append(1)
        yield b""

    with pytest.raises(RedisUnfit, match=r"not submitted: durable=2 needs 2 replicas .* has 1"):
        queue.submit_request(bodies(), id="r1", durable=2)
    assert pulled == []
    with contextlib.closing(pair.primary.client()) as client:
        assert client.dbsize() == 0


def test_a_server_without_replicas_refuses_too(redis_server: Backend, redis_url: str):
    if redis_server.kind in WITH_REPLICAS:
        pytest.skip("every primary has a replica here")
    with (
        Queue.from_url(redis_url) as alone,
        pytest.raises(RedisUnfit, match="needs 1 replica and its Redis has 0"),
    ):
        alone.submit_request([b"a"], durable=1)


def test_a_durable_submission_cut_off_anywhere_is_resumed_and_confirmed(queue: Queue, pair: Pair):
    policy = Policy(durable=1)
    with contextlib.closing(pair.primary.client()) as client:
        after = 0
        while not cut(queue.driver, submit("r1", policy), THREE, after):
            assert queue.driver.run(submit("r1", policy), iter(THREE)) == 5
            assert broken(queue, "r1") == []
            assert sorted(work_off(queue.driver, count=1)) == [b"a", b"b", b"c", b"d", b"e"]
            client.flushall()
            after += 1
    assert after > 12


# ------------------------------------------------------------------ lost in a failover


def steps_until_confirm(driver: Any, operation: Any) -> Any:
    """Runs an operation up to its Confirm, which is returned."""
    source, reply = iter(THREE), None
    while not isinstance(step := operation.send(reply), Confirm):
        reply = next(source, None) if isinstance(step, NextChunk) else driver.run(once(step))
    return step


@pytest.mark.parametrize("lost", ["all of it", "its last chunk"])
def test_what_a_failover_took_before_the_confirmation_is_noticed(queue: Queue, lost: str):
    """WAIT alone would not detect it: the new primary has replicas, too."""
    operation = submit("r1", Policy(durable=1))
    step = steps_until_confirm(queue.driver, operation)
    with contextlib.closing(servers_client(queue)) as client:
        if lost == "all of it":
            client.delete("req:{r1}")
        else:
            client.hset("req:{r1}", "chain", "as it was after the second chunk")
        found = queue.driver.run(once(step))
        with pytest.raises(RequestLost, match="lost a part of its submission"):
            operation.send(found)
        client.flushall()


def servers_client(queue: Queue) -> Any:
    """Makes a raw client of a queue's server."""
    import redis

    return redis.Redis.from_url(queue.driver.url)


# ------------------------------------------------------------------ completion and end


def test_a_waiter_receives_an_end_that_the_replica_has(queue: Queue, pair: Pair):
    request = queue.submit_request(numbered(3), id="r1", durable=1)
    work_off(queue.driver)
    assert request.wait(PATIENCE_S) == "done"
    with contextlib.closing(pair.replica.client()) as replica:
        assert replica.hget("req:{r1}", "state") == b"done"


@pytest.mark.usefixtures("short")
def test_an_end_that_no_replica_confirms_is_not_durable(queue: Queue, pair: Pair):
    request = queue.submit_request(numbered(3), id="r1", durable=1)
    with pair.frozen():
        work_off(queue.driver)
        with pytest.raises(NotDurable, match=r"has ended \(done\), but only 0 of 1 replica"):
            request.wait(PATIENCE_S)
    assert request.wait(PATIENCE_S) == "done"


def test_an_end_that_a_failover_took_back_is_waited_for_again(queue: Queue):
    queue.submit_request([b"a"], id="r1", durable=1)
    assert queue.driver.run(durability.confirm_end("r1", 1, "done")) is False
    assert queue.driver.run(durability.confirm_end("r1", 1, "active")) is True
    work_off(queue.driver)
    assert queue.driver.run(durability.confirm_end("r1", 1, "done")) is True
    assert queue.driver.run(durability.confirm_end("gone", 1, "done")) is False


def test_settling_is_confirmed_whatever_it_returns(queue: Queue, pair: Pair, short: None):
    """ok, the end, already and ended: each has a write behind which WAIT waits."""
    del short
    queue.submit_request(numbered(2), id="r1", durable=1, limit=1)
    held = next_slice(queue.driver, count=1)
    assert held.durable == 1
    entry, (_, _) = held.entries[0]
    call = lease.complete(held, [entry], [b"0:d:1:0:0", b""], [], keep=False)

    def settle(expected: bytes) -> str:
        reply, missing = queue.driver.run(durability.confirm_settled(call, "r1", 1))
        assert reply.word == expected.decode()
        return missing

    assert settle(b"ok") == ""
    with pair.frozen():
        assert "only 0 of 1 replica" in settle(b"already")
    assert settle(b"already") == ""
    queue.request("r1").cancel()
    with pair.frozen():
        assert "only 0 of 1 replica" in settle(b"ended")
    assert settle(b"ended") == ""


def test_what_is_lost_is_not_waited_for(queue: Queue, pair: Pair):
    queue.submit_request(numbered(2), id="r1", durable=1)
    held = next_slice(queue.driver, count=1)
    held.fence = b"999"
    call = lease.complete(held, [], [], [], keep=False)
    reply, missing = queue.driver.run(durability.confirm_settled(call, "r1", 1))
    assert reply.is_lost
    assert missing == ""


# ------------------------------------------------------------------ kill -9 of the primary


def test_all_that_was_acknowledged_survives_the_primary(mortal: Pair):
    """The primary is killed while a producer submits and a worker works."""
    submitted, ended = [], []

    def go_on(queue: Queue) -> None:
        with contextlib.suppress(FairlaneError):
            for i in range(100_000):
                request = queue.submit_request(numbered(20), id=f"r{i}", durable=1, lease=1)
                submitted.append(request.id)
                if i % 3 == 0:
                    work_off(queue.driver)
                    request.wait(PATIENCE_S)
                    ended.append(request.id)

    with Queue.from_url(mortal.primary.url, patience_s=0) as queue:
        producer = threading.Thread(target=go_on, args=(queue,))
        producer.start()
        wait_until(lambda: len(submitted) > 60, why="60 requests are submitted")
        mortal.fail_over()
        producer.join(30)
    with Queue.from_url(mortal.replica.url) as queue:
        assert all(queue.request(name).state() == "done" for name in ended)
        for name in submitted:
            assert queue.request(name).progress().total == 20
            assert broken(queue, name) == []
        wait_until(lambda: drained(queue, submitted), why="every request is done")


def drained(queue: Queue, names: list[str]) -> bool:
    """Checks all requests, mints lost tokens again, and works everything off.

    At the crash one slice was held, or its token had been popped and its lease was not replicated.
    """
    score = tokens.seen_to_exist(1)
    for name in names:
        queue.driver.run(once(Command(b"ZADD", keys.active("req"), b"XX", score, name)))
    queue.driver.run(workers.look_after("req"))
    queue.driver.run(Audit("req").run(grace_ms=0))
    work_off(queue.driver)
    return all(queue.request(name).state() == "done" for name in names)


@pytest.mark.rest
@pytest.mark.usefixtures("short")
def test_what_was_not_confirmed_may_be_lost(mortal: Pair):
    """The sentence of NotDurable is true: a request that only the primary had is gone."""
    with Queue.from_url(mortal.primary.url, patience_s=0) as queue:
        queue.submit_request([b"a"], id="safe", durable=1)
        mortal.freeze()
        with pytest.raises(NotDurable):
            queue.submit_request([b"a"], id="risky", durable=1)
        mortal.primary.process.kill()
        mortal.primary.process.wait()
        mortal.thaw()
        mortal.fail_over()
    with Queue.from_url(mortal.replica.url) as queue:
        assert queue.request("safe").state() == "active"
        # It may have been in a socket's buffer already: either all of it is there or nothing.
        with contextlib.closing(mortal.replica.client()) as client:
            assert stored(client, "risky").get("total", "1") == "1"


# ------------------------------------------------------------------ texts


def test_the_disk_confirms_if_the_server_supports_it():
    """It is WAITAOF of Redis 7.2 with an append-only file, for its own disk."""
    with_file, without = {"aof_enabled": "1"}, {"aof_enabled": "0"}
    assert error_mapping.has_waitaof({"redis_version": "7.2.0", **with_file})
    assert error_mapping.has_waitaof({"redis_version": "8.0.1", **with_file})
    assert not error_mapping.has_waitaof({"redis_version": "7.2.0", **without})
    assert not error_mapping.has_waitaof({"redis_version": "7.0.15", **with_file})
    assert [c.args for c in calls.confirmation(2, waits_for_disk=False)] == [
        (b"WAIT", 2, settings.CONFIRM_MS)
    ]
    first, second = calls.confirmation(2, waits_for_disk=True)
    assert (first.args, second.args) == (
        (b"WAIT", 2, settings.CONFIRM_MS),
        (b"WAITAOF", 1, 0, 2500),
    )


def test_replies_of_wait_and_waitaof_are_read():
    """WAITAOF returns [own disk, replicas]; WAIT returns a number."""
    assert calls.confirmed("reply", [2]) == Confirmed("reply", 2, is_synced=True)
    assert calls.confirmed("reply", [2, [1, 0]]) == Confirmed("reply", 2, is_synced=True)
    assert calls.confirmed("reply", [2, [0, 0]]) == Confirmed("reply", 2, is_synced=False)


def test_a_disk_without_the_write_is_named():
    operation = durability.confirm_submission("r1", 1, "c1")
    operation.send(None)
    with pytest.raises(NotDurable, match=r"append-only file was not on disk within 2\.5 s"):
        operation.send(Confirmed([b"ok", b"active", b"c1", 1, 0], 1, is_synced=False))


@pytest.mark.parametrize(
    ("state", "is_open", "error"),
    [(b"active", 1, RequestLost), (b"cancelled", 0, RequestEnded)],
    ids=["its seal is lost", "and it was abandoned then"],
)
def test_a_submission_whose_seal_a_failover_took_is_not_acknowledged(
    state: bytes, is_open: int, error: type[Exception]
):
    """The seal changes no digest."""
    operation = durability.confirm_submission("r1", 1, "c1")
    operation.send(None)
    with pytest.raises(error):
        operation.send(Confirmed([b"ok", state, b"c1", 1, is_open], 1, is_synced=True))


def test_a_confirmation_takes_less_than_a_call_may():
    """Otherwise the socket would time out first and the call would be repeated for nothing."""
    assert settings.CONFIRM_MS < settings.SOCKET_TIMEOUT_S * 1000
    assert settings.SYNC_MS < settings.SOCKET_TIMEOUT_S * 1000


def test_only_replicas_that_follow_now_count():
    """A replica that still copies, or has lost touch, confirms nothing."""
    info = (
        b"# Replication\r\nrole:master\r\nconnected_slaves:3\r\n"
        b"slave0:ip=127.0.0.1,port=1,state=online,offset=9,lag=0\r\n"
        b"slave1:ip=127.0.0.1,port=2,state=send_bulk,offset=0,lag=0\r\n"
        b"slave2:ip=127.0.0.1,port=3,state=online,offset=9,lag=1\r\n"
        b"slave_repl_offset:12\r\n"
    )
    assert durability.count_online(info) == 2
    assert durability.count_online(b"role:master\r\nconnected_slaves:0\r\n") == 0


def test_a_confirmed_command_is_one_step(queue: Queue):
    found = queue.driver.run(once(Confirm(Command(b"SET", b"{r1}:x", b"1"), 1)))
    assert found == (b"OK", 1, True)
