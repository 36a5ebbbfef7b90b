"""Tests how a worker starts and ends: signals, its record, its id, and until idle."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.common import clock
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import InvalidArgument, WorkerRefused
from fairlane.operations import workers as registry
from fairlane.protocol import keys
from fairlane.queue import Queue
from fairlane.worker import Worker
from tests.support.processes.workers import broken, check_settled_once, is_alive
from tests.support.run.for_each import for_each
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.handlers import echo
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    import redis

    from tests.support.processes.workers import Folder, Workers


def numbers(count: int) -> list[bytes]:
    """Returns bodies 0, 1, 2 ..."""
    return [b"%d" % i for i in range(count)]


# ------------------------------------------------------------------ signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@ON_SINGLE
def test_a_signal_drains(number: signal.Signals, queue: Queue, workers: Workers, folder: Folder):
    """Leases are finished, nothing new is taken, exit 0; no attempt is used up."""
    request = queue.submit_request(numbers(10), limit=2)
    worker = workers.start("hold", processes=2)
    folder.wait_noted("began", 2)
    worker.send_all(number)  # as a terminal does: the children leave it to the supervisor
    worker.wait_health(draining=True, held=2)
    folder.open_gate()
    assert worker.wait() == 0
    progress = request.progress()
    assert (progress.done, progress.held, progress.left) == (2, 0, 8)
    assert broken(queue, request.id) == []
    assert len(folder.noted("began")) == len(folder.noted("ended")) == 2
    workers.run("hold")
    assert {result.attempt for result in request.results()} == {1}
    assert len(folder.noted("began")) == 10
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_a_signal_in_the_middle_of_slices_wastes_nothing(
    queue: Queue, workers: Workers, folder: Folder
):
    """The call that runs ends, the slice's rest is released uncharged: nothing runs twice."""
    request = queue.submit_request(numbers(1000), limit=2)
    worker = workers.start("step", concurrency=2)
    folder.wait_noted("ran", 200)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    done = request.progress().done
    assert 0 < done < 1000
    assert len(folder.noted("ran")) == done
    assert broken(queue, request.id) == []
    workers.run("step", concurrency=2)
    assert len(folder.noted("ran")) == 1000
    assert {result.attempt for result in request.results()} == {1}
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_a_second_signal_stops_immediately_and_gives_back(
    queue: Queue, workers: Workers, folder: Folder
):
    """The handler is killed, the lease released; the next delivery is still attempt 1."""
    request = queue.submit_request(numbers(3), limit=1)
    worker = workers.start("hold_once")
    pid = int(folder.wait_noted("began")[0][1])
    worker.send(signal.SIGTERM)
    worker.wait_health(draining=True, held=1)
    assert is_alive(pid)
    drained = time.monotonic()
    wait_until(lambda: time.monotonic() > drained + 0.35, why="one stop may be two signals")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert not is_alive(pid)
    assert (request.progress().held, request.progress().left) == (0, 3)
    assert broken(queue, request.id) == []
    assert "stops now and gives back 1 lease" in worker.said()
    workers.run("hold_once")
    began = [(index, attempt) for index, _, attempt in folder.noted("began")]
    assert sorted(began) == [("0", "1"), ("0", "1"), ("1", "1"), ("2", "1")]
    check_settled_once(request)


def test_an_idle_worker_leaves_before_its_pops_time_out(queue: Queue, workers: Workers):
    """Its units are woken; its record is removed."""
    worker = workers.start("echo", processes=2, concurrency=2)
    assert worker.wait_health(processes=2)["held"] == 0
    before = time.monotonic()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert time.monotonic() - before < settings.BLOCK_MS / 1000
    assert queue.status().workers == ()


# ------------------------------------------------------------------ its record


@ON_SINGLE
def test_a_worker_whose_record_is_deleted_drains(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    """An operator can end a remote worker like this."""
    worker = workers.start("echo")
    redis_client.delete(keys.worker("req", worker.id))
    assert worker.wait() == 0
    assert f"worker {worker.id} drains: its record was deleted" in worker.said()
    assert queue.status().workers == ()


@ON_SINGLE
def test_a_worker_whose_name_was_taken_drains(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    """It leaves the record of the other worker alone."""
    worker = workers.start("echo")
    record = keys.worker("req", worker.id)
    redis_client.hset(record, "started", "1")
    assert worker.wait() == 0
    assert f"worker {worker.id} drains: its record was replaced" in worker.said()
    assert redis_client.hget(record, "started") == b"1"
    assert queue.driver.run(registry.unregister_worker("req", worker.id, "1")) == 1


@ON_SINGLE
def test_a_worker_whose_registry_is_gone_registers_anew(
    queue: Queue, workers: Workers, redis_client: redis.Redis
):
    """A lost slot is no order to end."""
    worker = workers.start("echo")
    redis_client.delete(keys.worker("req", worker.id), keys.workers("req"))
    wait_until(lambda: queue.status().workers == (worker.id,), why="it is there again")
    request = queue.submit_request(numbers(3))
    assert request.wait(timeout=PATIENCE_S) == "done"


# ------------------------------------------------------------------ its id


def test_an_id_that_beats_elsewhere_is_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """Its notes must have stopped before; the error names its process."""
    monkeypatch.setattr(settings, "LATE_MS", 60_000)  # a busy machine is not late by so much
    with socket.create_server(("127.0.0.1", 0)) as free:
        name = f"127.0.0.1:{free.getsockname()[1]}"
    other = queue.driver.run(registry.register_worker("req", name, "elsewhere b1 net:[1]", 12, "1"))
    assert (other[0].is_ok, other[1]) == (True, "")
    slept = []
    mono_s = clock.mono_s

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert queue.driver.run(registry.heartbeat("req", name, "1", "")).is_ok

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(clock, "mono_s", lambda: mono_s() + sum(slept))
    sentence = rf"worker id {name} beats in another process \(pid 12 on elsewhere\): choose"
    with pytest.raises(WorkerRefused, match=sentence):
        Worker(queue, echo, id=name).run()
    assert sum(slept) >= settings.LATE_MS / 1000
    assert queue.driver.run(registry.unregister_worker("req", name, "1")) == 1


def test_a_port_that_is_taken_is_refused(queue: Queue):
    """Nothing is written before."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        name = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(WorkerRefused, match=r"is taken: give this worker another --id"):
            Worker(queue, echo, id=name).run()
    assert queue.status().workers == ()


@for_each(
    "given, sentence",
    [
        ({"concurrency": 0}, "concurrency 0 is not valid: a whole number from 1 to 1000"),
        ({"concurrency": 1001}, "concurrency 1001 is not valid"),
        ({"processes": 257}, "processes 257 is not valid: a whole number from 1 to 256"),
        ({"processes": True}, "processes True is not valid"),
        ({"processes": 1.5}, "processes 1.5 is not valid"),
        ({"slice_s": -1}, "slice_s -1 is not valid: 0 to 10 seconds are expected"),
        ({"slice_s": 10.1}, "slice_s 10.1 is not valid"),
        ({"id": "nowhere"}, "worker id 'nowhere' is not valid: host:port is expected"),
    ],
)
def test_a_worker_that_makes_no_sense_is_refused(given: dict[str, Any], sentence: str):
    """Each error is a sentence, before anything is connected."""
    nowhere = Queue(SyncDriver("redis://127.0.0.1:1"))
    with pytest.raises(InvalidArgument, match=sentence):
        Worker(nowhere, echo, **given)


# ------------------------------------------------------------------ until idle


def test_until_idle_ends_immediately_when_there_is_nothing(workers: Workers):
    """Exit 0."""
    workers.run("echo")


def test_until_idle_ends_when_nothing_is_left(queue: Queue, workers: Workers):
    """Requests of every priority, one of them empty, are done before."""
    requests = [queue.submit_request(numbers(n), priority=p) for n, p in ((5, 0), (7, 99), (0, 50))]
    workers.run("echo")
    assert [request.state() for request in requests] == ["done"] * 3


def test_until_idle_waits_for_retries(queue: Queue, workers: Workers, folder: Folder):
    """A sub-request that failed once and is due later is not left behind."""
    request = queue.submit_request(numbers(2), limit=1, backoff=(0.05, 0.05))
    workers.run("fail_first")
    assert [(result.status, result.attempt) for result in request.results()] == [("done", 2)] * 2
    assert len(folder.noted("ran")) == 4
    check_settled_once(request)


@pytest.mark.rest
@ON_SINGLE
def test_until_idle_waits_for_what_others_hold(queue: Queue, workers: Workers, folder: Folder):
    """The worker that ends last is not the first that finds no token."""
    request = queue.submit_request(numbers(1))
    workers.start("hold")
    folder.wait_noted("began")
    other = workers.start("echo", until_idle=True)
    beaten = other.id and workers.client.zscore(keys.workers("req"), other.id)
    wait_until(
        lambda: (workers.client.zscore(keys.workers("req"), other.id) or 0) > (beaten or 0) + 300,
        why="it has looked several times",
    )
    assert other.process.poll() is None
    folder.open_gate()
    assert other.wait() == 0
    assert request.state() == "done"
