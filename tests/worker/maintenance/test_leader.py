"""Tests how the leader finds dead workers, takes their leases back, and how leases are extended."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.model import Token
from fairlane.operations import workers
from fairlane.operations.audit import Audit
from fairlane.operations.workers import Late
from fairlane.protocol import keys
from fairlane.protocol.steps import Batch, Call, Command
from fairlane.queue import Queue
from fairlane.worker.board import LeaseBoard
from fairlane.worker.health_port import whereabouts
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.leader import refuses
from fairlane.worker.lease_keeper import LeaseKeeper
from tests.support.operations.upkeep import ACTIVE, WORKERS, server_ms, watch
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import MINUTE, Lane, Tok, numbered, pop_token
from tests.worker.parts import OP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane.protocol.steps import Operation, Step

NOWHERE = "redis://127.0.0.1:1"  # the drivers of these tests connect to nothing


# ------------------------------------------------------------------ dead workers, in Redis


@pytest.fixture
def driver(redis_url: str) -> Iterator[SyncDriver]:
    """Makes a driver which repeats nothing."""
    with contextlib.closing(SyncDriver(redis_url, patience_s=0)) as made:
        yield made


@pytest.fixture
def lane(driver: SyncDriver, redis_client: redis.Redis) -> Lane:
    """Makes the request `r1`, as of now."""
    made = Lane(driver, redis_client)
    made.now = server_ms(redis_client)
    return made


def register(lane: Lane, name: str, late_ms: int = 0, started: int = 7) -> None:
    """Registers a worker whose last heartbeat was so long ago."""
    given = {"host": "box", "pid": 1, "ttl": settings.WORKER_TTL_MS, "late": -1, "release": ""}
    names = (WORKERS, keys.worker("req", name), keys.conf("req"), keys.task_stats("req"))
    lane.call("register_worker", names, id=name, started=started, now=lane.now - late_ms, **given)


def note(lane: Lane, *tokens: Token | Tok, worker: str = "w:1", unit: str = "0.1") -> None:
    """Notes the tokens that a unit of a worker took."""
    texts = [f"{getattr(one, 'request_id', 'r1')}#{one.k}.{one.g}" for one in tokens]
    lane.client.hset(keys.taken("req", worker), unit, " ".join(texts))
    lane.client.expire(keys.taken("req", worker), 600)


def test_all_leases_of_a_dead_worker_are_taken(lane: Lane, driver: SyncDriver):
    """They owe more than one reap takes; they are uncharged, because each owes more than one."""
    Queue(driver).submit_request(numbered(4000), id="r1", limit=4)
    for worker, started in (("w:1", "7"), ("w:1", "7"), ("w:1", "8"), ("w:2", "7")):
        popped = pop_token(driver)
        assert popped is not None
        lane.take(Tok(5, popped.k, popped.g), worker=worker, started=started)
        note(lane, popped, worker=worker, unit=popped.k)
    held = lane.pending()
    assert held["w:1/0"] == 1000
    assert driver.run(workers.take_over("req", "w:1", "7")) == 1
    left = lane.pending()
    assert {name: held[name] for name in left if name != "-"} == {
        name: count for name, count in left.items() if name != "-"
    }
    assert lane.client.zcard(keys.leases("r1")) == 2
    assert left["-"] == sum(held.values()) - sum(held[name] for name in left if name != "-")
    assert lane.check(server_ms(lane.client)) == []


def test_taking_over_ends_while_another_has_an_expired_lease(lane: Lane, driver: SyncDriver):
    """That one is not named, so it stays: the leader that checks the request takes it back."""
    first, second, _ = lane.start(3)
    lane.take(first, worker="w:1")
    lane.later(-MINUTE)
    lane.take(second, worker="w:2")
    note(lane, first)
    looked, steps = watch(driver, workers.take_over("req", "w:1", "7"))
    assert (looked, [name for name in steps if "reap" in name]) == (1, ["1 reap"])
    assert lane.client.zcard(keys.leases("r1")) == 1


def test_a_request_that_cannot_be_read_keeps_no_other_from_its_leases(
    lane: Lane, driver: SyncDriver
):
    """Nor does a foreign note; the dead worker is forgotten."""
    register(lane, "w:1")
    lane.later(-MINUTE)
    (token,) = lane.start(3, limit=1, lease_ms=10 * MINUTE)
    lane.take(token)
    note(lane, Token("bad", "0", "1"), token)
    lane.client.hset(keys.taken("req", "w:1"), "1.0", b"\xff r1#x.1 #0.1")
    lane.client.sadd("req:{bad}", "text")
    assert driver.run(workers.take_over("req", "w:1", "7")) == 2
    assert lane.client.zcard(keys.leases("r1")) == 0
    assert lane.client.zrange(WORKERS, 0, -1) == []
    popped = pop_token(driver)
    assert popped is not None
    lane.now = server_ms(lane.client)
    assert lane.take(Tok(5, popped.k, popped.g)).bodies == [b"b0"]
    lane.client.delete("req:{bad}")


def test_tokens_in_a_dead_workers_hands_are_minted_again(lane: Lane, driver: SyncDriver):
    """It died between its pop and its lease; what it had leased and settled is stale."""
    register(lane, "w:1")
    first, second, third = lane.start(9)
    note(lane, first, second)
    lane.complete(lane.take(first))
    assert driver.run(workers.take_over("req", "w:1", "7")) == 1
    assert lane.client.llen(keys.lanes("req")[5]) == 1
    popped = pop_token(driver)
    assert popped is not None
    assert (popped.k, popped.g) != (second.k, second.g)
    assert lane.acquire(second).word == "stale"
    lane.take(Tok(5, popped.k, popped.g))
    lane.take(third)
    assert lane.client.exists(keys.taken("req", "w:1")) == 0


def test_a_take_over_costs_what_the_dead_worker_had_taken(lane: Lane, driver: SyncDriver):
    """What waits does not count: two thousand other requests are not read."""
    lane.client.zadd(ACTIVE, {f"other{i}": i for i in range(2_000)})
    register(lane, "w:1")
    tokens = lane.start(3)
    lane.take(tokens[0])
    note(lane, tokens[0])
    looked, steps = watch(driver, workers.take_over("req", "w:1", "7"))
    assert (looked, steps) == (1, ["HGETALL", "1 reap", "1 insert_tokens", "unregister_worker"])
    assert lane.client.zcard(keys.leases("r1")) == 0
    lane.client.delete(ACTIVE)


def test_many_requests_of_a_dead_worker_share_round_trips(lane: Lane, driver: SyncDriver):
    """A hundred are in one, with their tokens and ends."""
    note(lane, *(Token(f"r{i}", "0", "1") for i in range(250)))
    looked, steps = watch(driver, workers.take_over("req", "w:1", "7"))
    assert (looked, steps) == (
        250,
        ["HGETALL", "100 reap", "100 reap", "50 reap", "unregister_worker"],
    )


def test_an_idle_workers_death_costs_two_calls(lane: Lane, driver: SyncDriver):
    """It had noted nothing."""
    register(lane, "w:1")
    steps = watch(driver, workers.take_over("req", "w:1", "7"))[1]
    assert steps == ["HGETALL", "unregister_worker"]


def test_a_lease_that_no_note_names_is_found_by_the_audit(
    lane: Lane, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    """A full Redis may have refused the note: then the lease expires first."""
    register(lane, "w:1")
    lane.later(-MINUTE)
    lane.take(lane.start(1)[0])
    lane.client.zadd(ACTIVE, {"r1": 9e12})
    assert driver.run(workers.take_over("req", "w:1", "7")) == 0
    assert lane.client.zcard(keys.leases("r1")) == 1
    driver.run(Audit("req").run(settings.DEATH_GRACE_MS))
    assert lane.client.zcard(keys.leases("r1")) == 0


@pytest.mark.parametrize(("started", "stays"), [(7, []), (8, [b"w:1"])])
def test_only_the_dead_life_is_forgotten(
    lane: Lane, driver: SyncDriver, started: int, stays: list[bytes]
):
    """A worker that has begun again under the same name stays registered."""
    register(lane, "w:1", started=started)
    assert driver.run(workers.take_over("req", "w:1", "7")) == 0
    assert lane.client.zrange(WORKERS, 0, -1) == stays


def test_late_workers_are_named_and_those_long_gone_are_forgotten(lane: Lane, driver: SyncDriver):
    """The clock and the heartbeats take one round trip; an expired record names none."""
    register(lane, "w:1")
    register(lane, "w:2", settings.LATE_MS + 1000)
    register(lane, "w:3", settings.WORKER_TTL_MS + 1000)
    lane.client.delete(keys.worker("req", "w:3"))
    found, steps = watch(driver, workers.late_workers("req"))
    assert found == [Late("w:2", "7", "box")]
    assert steps[0] == "2 ZRANGE"
    assert lane.client.zrange(WORKERS, 0, -1) == [b"w:2", b"w:1"]


def test_no_late_worker_costs_one_round_trip(lane: Lane, driver: SyncDriver):
    """It names none."""
    register(lane, "w:1")
    assert watch(driver, workers.late_workers("req")) == ([], ["2 ZRANGE"])


# ------------------------------------------------------------------ dead workers, by their ports

HERE, ELSEWHERE = whereabouts(), "another-machine"


@pytest.fixture
def closed() -> str:
    """Returns the id of a worker of this machine whose port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_closed_port_of_ours_is_a_dead_worker(closed: str):
    """The worker was killed."""
    assert refuses(Late(closed, "7", HERE)) is True


@for_each("name", ["127.0.0.1", "127.0.1.1", "localhost", "0.0.0.0", "::1"])
@for_each("part", [0, 1, 2])
def test_our_loopback_proves_nothing_about_a_worker_elsewhere(name: str, part: int):
    """Its worker has an address like ours: on another machine, or in another container."""
    parts = HERE.split(" ")
    parts[part] = "another"
    assert refuses(Late(f"{name}:1", "7", " ".join(parts))) is False
    assert refuses(Late(f"{name}:1", "7", "")) is False
    assert refuses(Late(f"{name}:1", "7", HERE)) is True


def test_another_machines_port_is_tried_by_its_address(monkeypatch: pytest.MonkeyPatch):
    """An address that is not a loopback means the same everywhere."""
    asked = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append((address, timeout))
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    assert refuses(Late("10.0.0.9:7101", "7", ELSEWHERE)) is True
    assert asked == [(("10.0.0.9", 7101), settings.PROBE_S)]


def test_a_port_without_a_reply_is_no_dead_worker():
    """The port is open: its worker may be stopped, or very busy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert refuses(Late(f"127.0.0.1:{port}", "7", HERE)) is False


@pytest.mark.parametrize(
    "error", [TimeoutError, socket.gaierror, OSError], ids=lambda e: e.__name__
)
def test_a_port_that_cannot_be_reached_is_no_dead_worker(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
):
    """Packets may be lost, names unresolved, routes down."""

    def connect(*_: object, **__: object) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    assert refuses(Late("10.0.0.9:7101", "7", ELSEWHERE)) is False


def test_a_name_that_is_no_address_is_no_dead_worker():
    """Another release may name its workers otherwise."""
    for here in (HERE, ELSEWHERE):
        assert refuses(Late("worker", "7", here)) is False
        assert refuses(Late("a..b:1", "7", here)) is False


# ------------------------------------------------------------------ extending


class FakeDriver:
    """Answers scripts by their name; a function may raise. Each request has a server of its own.

    No request was ever cancelled: the count of cancels is missing.
    """

    url = NOWHERE
    servers = SimpleNamespace(is_one=True)

    def __init__(self, **answers: Callable[[Call[Any]], Any]) -> None:
        self.answers = answers
        self.called: list[str] = []

    def run(self, operation: Operation[Any]) -> Any:
        """Returns the result of an operation, with every reply invented."""
        reply: Any = None
        try:
            while True:
                step = operation.send(reply)
                steps = step.steps if isinstance(step, Batch) else [step]
                lenient = isinstance(step, Batch) and step.lenient
                replies = [self._reply(part, lenient=lenient) for part in steps]
                reply = replies if isinstance(step, Batch) else replies[0]
        except StopIteration as end:
            return end.value

    def _reply(self, step: Step, *, lenient: bool) -> Any:
        try:
            return self._answer(step)
        except FairlaneError as error:
            if not lenient:
                raise
            return error

    def _answer(self, step: Step) -> Any:
        if isinstance(step, Command):
            assert step.args[:2] == (b"HMGET", keys.conf("req"))
            return [None] * len(step.args[2:])
        assert isinstance(step, Call)
        self.called.append(step.script.name)
        return self.answers[step.script.name](step)


def beaten(leads: int = 0, active_due: int = 0, delayed_due: int = 0) -> list[Any]:
    """Returns the reply of heartbeat at second 1,000."""
    return [
        b"ok",
        leads,
        1_000_000,
        active_due,
        delayed_due,
        1_000_000,
        *(b"", b"", 0, 0, 0, b"", 0),
    ]


def keeper_of(driver: FakeDriver, board: LeaseBoard) -> LeaseKeeper:
    """Makes a worker's leases, as if in Redis."""
    return LeaseKeeper(driver, "req", "w:1", "7", board)  # type: ignore[arg-type]


def heartbeat_of(driver: FakeDriver, board: LeaseBoard) -> Heartbeat:
    """Makes a worker's registration, as if in Redis."""
    return Heartbeat(driver, "req", "w:1", board)  # type: ignore[arg-type]


def extended(board: LeaseBoard) -> list[float]:
    """Returns when each lease ends now."""
    return [held.deadline for held in board.held()]


def test_a_lease_that_cannot_be_extended_does_not_stop_the_others(now: list[float]):
    """Its request's server may be the one that is down."""

    def extend(call: Call[Any]) -> Any:
        if call.keys == keys.request_keys("r2"):
            raise RedisUnreachable("Redis at h:1 does not answer")
        return [b"ok"]

    driver, board = FakeDriver(extend=extend), LeaseBoard(3)
    keeper = keeper_of(driver, board)
    for record, request_id in zip(board.records, ("r1", "r2", "r3"), strict=True):
        record.hold(request_id, "0", 7, OP, 100.0, 30.0)
    now[0] = 111.0
    keeper.tick()
    assert extended(board) == [141.0, 130.0, 141.0]
    assert driver.called == ["extend", "extend", "extend"]
    assert not any(record.attention for record in board.records)


def test_a_beat_that_fails_does_not_stop_the_worker(now: list[float]):
    """It continues, unhealthy when Redis has not answered for ten seconds."""

    def beat(_: Call[Any]) -> Any:
        raise RedisUnreachable("Redis at h:1 does not answer")

    heartbeat = heartbeat_of(FakeDriver(heartbeat=beat), LeaseBoard(1))
    healthy = []
    for now[0] in (109.0, 110.0):
        heartbeat.tick(often=False)
        healthy.append(heartbeat.is_healthy)
    assert healthy == [True, False]
    assert not heartbeat.must_drain
