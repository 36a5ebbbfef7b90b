"""Who leads: dead workers are found and their leases taken, and no upkeep delays a lease."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import keys, settings
from fairlane.drivers.sync import SyncDriver
from fairlane.errors import FairlaneError, RedisUnreachable
from fairlane.operations import deaths, maintain
from fairlane.operations.deaths import Late
from fairlane.operations.fsck import Walk
from fairlane.queue import Queue
from fairlane.steps import Batch, Call
from fairlane.worker.board import Board
from fairlane.worker.keeper import Keeper
from fairlane.worker.maintenance import Maintenance, refuses
from tests.operations.test_maintain import ACTIVE, WORKERS, server_ms, watch
from tests.support.requests import MINUTE, Lane, Tok, numbered, pop_token
from tests.support.wait import wait_until
from tests.worker.parts import OP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from fairlane.steps import Operation, Step

NOWHERE = "redis://127.0.0.1:1"  # the drivers of these tests connect to nothing


# ------------------------------------------------------------------ dead workers, in Redis


@pytest.fixture
def driver(redis_url: str) -> Iterator[SyncDriver]:
    """A driver which repeats nothing."""
    with contextlib.closing(SyncDriver(redis_url, patience_s=0)) as made:
        yield made


@pytest.fixture
def lane(driver: SyncDriver, redis_client: redis.Redis) -> Lane:
    """The request `r1`, as of now."""
    made = Lane(driver, redis_client)
    made.now = server_ms(redis_client)
    return made


def register(lane: Lane, name: str, silent_ms: int = 0, started: int = 7) -> None:
    """A worker that beat for the last time so long ago."""
    given = {"host": "box", "pid": 1, "ttl": settings.WORKER_TTL_MS, "late": -1}
    names = (WORKERS, keys.worker("req", name), keys.conf("req"))
    lane.call("register", names, id=name, started=started, now=lane.now - silent_ms, **given)


def test_all_leases_of_a_dead_worker_are_taken(lane: Lane, driver: SyncDriver):
    """Also when they owe more than one reap takes; uncharged, as they owe more than one each."""
    Queue(driver).submit_request(numbered(4000), id="r1", limit=4)
    for worker, started in (("w:1", "7"), ("w:1", "7"), ("w:1", "8"), ("w:2", "7")):
        popped = pop_token(driver)
        assert popped is not None
        lane.take(Tok(5, popped.k, popped.g), worker=worker, started=started)
    held = lane.pending()
    assert held["w:1/0"] == 1000
    assert driver.run(deaths.take_over("req", "w:1", "7")) == 1
    left = lane.pending()
    assert {name: held[name] for name in left if name != "-"} == {
        name: count for name, count in left.items() if name != "-"
    }
    assert lane.client.zcard(keys.leases("r1")) == 2
    assert left["-"] == sum(held.values()) - sum(held[name] for name in left if name != "-")
    assert lane.check(server_ms(lane.client)) == []


def test_taking_over_ends_while_another_has_an_expired_lease(lane: Lane, driver: SyncDriver):
    """That one is not named, so it stays: whoever looks after the request takes it."""
    first, second, _ = lane.start(3)
    lane.take(first, worker="w:1")
    lane.later(-MINUTE)
    lane.take(second, worker="w:2")
    lane.client.zadd(ACTIVE, {"r1": 1})
    looked, steps = watch(driver, deaths.take_over("req", "w:1", "7"))
    assert (looked, [name for name in steps if "reap" in name]) == (1, ["1 reap"])
    assert lane.client.zcard(keys.leases("r1")) == 1


def test_a_request_that_cannot_be_read_keeps_no_other_from_its_leases(
    lane: Lane, driver: SyncDriver, monkeypatch: pytest.MonkeyPatch
):
    """The dead worker is forgotten; the audit that follows finds the tokens of the others."""
    register(lane, "w:1")
    lane.later(-MINUTE)
    lane.take(lane.start(3, limit=1, lease_ms=10 * MINUTE)[0])
    lane.client.zadd(ACTIVE, {"bad": 1, "r1": 2, b"\xff": 3})
    lane.client.sadd("req:{bad}", "text")
    assert driver.run(deaths.take_over("req", "w:1", "7")) == 3
    assert lane.client.zcard(keys.leases("r1")) == 0
    assert lane.client.zrange(WORKERS, 0, -1) == []
    monkeypatch.setattr(settings, "DEATH_GRACE_MS", -1)
    driver.run(maintain.audit("req"))
    popped = pop_token(driver)
    assert popped is not None
    lane.now = server_ms(lane.client)
    assert lane.take(Tok(5, popped.k, popped.g)).bodies == [b"b0"]
    lane.client.delete("req:{bad}")


@pytest.mark.parametrize(("started", "stays"), [(7, []), (8, [b"w:1"])])
def test_only_the_dead_life_is_forgotten(
    lane: Lane, driver: SyncDriver, started: int, stays: list[bytes]
):
    """A worker that has begun again under the same name stays registered."""
    register(lane, "w:1", started=started)
    assert driver.run(deaths.take_over("req", "w:1", "7")) == 0
    assert lane.client.zrange(WORKERS, 0, -1) == stays


def test_late_workers_are_named_and_silent_ones_forgotten(lane: Lane, driver: SyncDriver):
    """The clock and the beats in one round trip; a record that has expired names nobody."""
    register(lane, "w:1")
    register(lane, "w:2", settings.LATE_MS + 1000)
    register(lane, "w:3", settings.WORKER_TTL_MS + 1000)
    lane.client.delete(keys.worker("req", "w:3"))
    found, steps = watch(driver, deaths.late_workers("req"))
    assert found == [Late("w:2", "7", "box")]
    assert steps[0] == "2 ZRANGE"
    assert lane.client.zrange(WORKERS, 0, -1) == [b"w:2", b"w:1"]


def test_nobody_late_costs_one_round_trip(lane: Lane, driver: SyncDriver):
    """And names nobody."""
    register(lane, "w:1")
    assert watch(driver, deaths.late_workers("req")) == ([], ["2 ZRANGE"])


# ------------------------------------------------------------------ dead workers, at their door

HERE, ELSEWHERE = socket.gethostname(), "another-machine"


@pytest.fixture
def closed() -> str:
    """The id of a worker of this machine whose port is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_closed_port_of_ours_is_a_dead_worker(closed: str):
    """It was killed."""
    assert refuses(Late(closed, "7", HERE)) is True


@pytest.mark.parametrize("name", ["127.0.0.1", "127.0.1.1", "localhost", "0.0.0.0", "::1"])
def test_our_loopback_proves_nothing_about_another_machines(name: str):
    """Its worker calls itself like one of ours, and nobody knocks at all."""
    assert refuses(Late(f"{name}:1", "7", ELSEWHERE)) is False
    assert refuses(Late(f"{name}:1", "7", "")) is False


def test_another_machines_port_is_asked_by_its_address(monkeypatch: pytest.MonkeyPatch):
    """An address that is not a loopback means the same everywhere."""
    asked = []

    def knock(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append((address, timeout))
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", knock)
    assert refuses(Late("10.0.0.9:7101", "7", ELSEWHERE)) is True
    assert asked == [(("10.0.0.9", 7101), settings.PROBE_S)]


def test_a_port_that_says_nothing_is_no_dead_worker():
    """It listens: its worker may be stopped, or very busy."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert refuses(Late(f"127.0.0.1:{port}", "7", HERE)) is False


@pytest.mark.parametrize(
    "error", [TimeoutError, socket.gaierror, OSError], ids=lambda e: e.__name__
)
def test_a_port_that_cannot_be_reached_is_no_dead_worker(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
):
    """Packets may be lost, names unknown, routes down."""

    def knock(*_: object, **__: object) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", knock)
    assert refuses(Late("10.0.0.9:7101", "7", ELSEWHERE)) is False


def test_a_name_that_is_no_address_is_no_dead_worker():
    """Another release may call its workers otherwise."""
    assert refuses(Late("worker", "7", HERE)) is False


# ------------------------------------------------------------------ extending


class FakeDriver:
    """Answers scripts by their name; a function may raise. Each request has a server of its own."""

    url = NOWHERE
    servers = SimpleNamespace(is_one=True)

    def __init__(self, **answers: Callable[[Call], Any]) -> None:
        self.answers = answers
        self.told: list[str] = []

    def run(self, operation: Operation[Any]) -> Any:
        """The result of an operation, with every reply made up."""
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
        assert isinstance(step, Call)
        self.told.append(step.script.name)
        return self.answers[step.script.name](step)


def beaten(leads: int = 0, active_due: int = 0, delayed_due: int = 0) -> list[Any]:
    """What beat answers at second 1,000."""
    return [b"ok", leads, 1_000_000, active_due, delayed_due, 1_000_000, b"", b""]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The one number is the time; at 111 s a lease of 30 s, taken at 100 s, is to be extended."""
    made = [100.0]
    monkeypatch.setattr("fairlane.clock.mono_s", lambda: made[0])
    return made


def keeper_of(driver: FakeDriver, board: Board) -> Keeper:
    """A worker's standing, as if in Redis."""
    return Keeper(driver, "req", "w:1", board)  # type: ignore[arg-type]


def extended(board: Board) -> list[float]:
    """When each lease ends now."""
    return [held.deadline for held in board.held()]


def test_a_lease_that_cannot_be_extended_stops_neither_the_others_nor_the_beat(now: list[float]):
    """Its request's server may be the one that is down."""

    def extend(call: Call) -> Any:
        if call.keys == keys.request_keys("r2"):
            raise RedisUnreachable("Redis at h:1 does not answer")
        return [b"ok"]

    driver, board = FakeDriver(extend=extend, beat=lambda _: beaten()), Board(3)
    keeper = keeper_of(driver, board)
    for record, request_id in zip(board.records, ("r1", "r2", "r3"), strict=True):
        record.hold(request_id, "0", 7, OP, 100.0, 30.0)
    now[0] = 111.0
    keeper.tick(often=False)
    assert extended(board) == [141.0, 130.0, 141.0]
    assert driver.told == ["extend", "extend", "extend", "beat"]
    assert not any(record.attention for record in board.records)


def test_a_beat_that_fails_does_not_stop_the_worker(now: list[float]):
    """It goes on, unhealthy when Redis has not answered for ten seconds."""

    def beat(_: Call) -> Any:
        raise RedisUnreachable("Redis at h:1 does not answer")

    keeper = keeper_of(FakeDriver(beat=beat), Board(1))
    healthy = []
    for now[0] in (109.0, 110.0):
        keeper.tick(often=False)
        healthy.append(keeper.is_healthy)
    assert healthy == [True, False]
    assert not keeper.must_drain


# ------------------------------------------------------------------ the thread


class SlowDriver:
    """Each operation takes until the test lets it go."""

    url = NOWHERE

    def __init__(self) -> None:
        self.servers = SimpleNamespace(is_one=True, moved=lambda: None)
        self.began: list[str] = []
        self.may_end = threading.Semaphore(0)
        self.answers: dict[str, Any] = {}

    def run(self, operation: Any) -> Any:
        """Nothing is asked of Redis."""
        name = operation.__name__
        operation.close()
        self.began.append(name)
        assert self.may_end.acquire(timeout=20)
        answer = self.answers.get(name, 0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def slow() -> SlowDriver:
    """What a maintenance thread talks to."""
    return SlowDriver()


@pytest.fixture
def upkeep(slow: SlowDriver) -> Iterator[Maintenance]:
    """The leader's thread, not started yet."""
    made = Maintenance(NOWHERE, "req", "w:1")
    made._driver = slow  # type: ignore[assignment]
    yield made
    slow.may_end.release(1000)
    made.close()


def is_over(upkeep: Maintenance) -> bool:
    """Tell whether its thread has ended."""
    return upkeep._thread is None or not upkeep._thread.is_alive()


@pytest.mark.parametrize(
    ("due", "name"),
    [({"delayed_due": 1}, "promote"), ({"active_due": 1}, "look_after")],
    ids=["promote", "look"],
)
def test_upkeep_that_takes_long_delays_no_tick(
    slow: SlowDriver, upkeep: Maintenance, due: dict[str, int], name: str
):
    """Leases are extended and beats go out while it is under way."""
    board = Board(1)
    driver = FakeDriver(extend=lambda _: [b"ok"], beat=lambda _: beaten(leads=1, **due))
    keeper = keeper_of(driver, board)
    keeper._maintenance = upkeep
    keeper._beaten = 0.0
    keeper.tick(often=False)
    wait_until(lambda: slow.began == [name], why=f"{name} is under way")
    taken = time.monotonic() - 11
    board.records[0].hold("r1", "0", 7, OP, taken, 30.0)
    for _ in range(3):
        keeper._beaten = 0.0
        keeper.tick(often=False)
    assert driver.told == ["beat", "extend", "beat", "beat", "beat"]
    assert extended(board)[0] > taken + 30
    assert slow.began == [name]


def test_nothing_is_started_while_nothing_is_due(slow: SlowDriver, upkeep: Maintenance):
    """Not even the thread; and closing what never began is fine."""
    for _ in range(3):
        upkeep.told(1_000_000, 0, 0, 1_000_000)
    assert upkeep._thread is None
    upkeep.close()
    assert slow.began == []


def test_what_is_due_later_is_not_begun_before(slow: SlowDriver, upkeep: Maintenance):
    """The thread waits; what comes earlier is done first."""
    upkeep.told(1_000_000, 1_000_000 + MINUTE, 0, 1_000_000)
    assert not is_over(upkeep)
    upkeep.told(1_000_000, 1_000_000 + MINUTE, 1_000_000, 1_000_000)
    wait_until(lambda: slow.began, why="something begins")
    slow.may_end.release()
    upkeep.close()
    assert (slow.began, is_over(upkeep)) == (["promote"], True)


def test_close_ends_the_thread_after_the_call_it_is_in(slow: SlowDriver, upkeep: Maintenance):
    """Nothing else begins, whatever is due."""
    upkeep.told(1_000_000, 0, 1, 1_000_000)
    wait_until(lambda: slow.began, why="it begins")
    upkeep.told(1_000_000, 1, 1, 1)
    closing = threading.Thread(target=upkeep.close)
    closing.start()
    wait_until(lambda: upkeep._is_closed, why="it is told to end")
    slow.may_end.release()
    closing.join(20)
    assert (slow.began, is_over(upkeep)) == (["promote"], True)


@pytest.mark.parametrize("error", [RedisUnreachable("no answer"), ValueError("not ours")], ids=repr)
def test_upkeep_that_fails_is_tried_again(slow: SlowDriver, upkeep: Maintenance, error: Exception):
    """Whatever it was: this worker leads, so nobody else would do it."""
    slow.answers["promote"] = error
    slow.may_end.release(2)
    for count in (1, 2):
        upkeep.told(1_000_000, 0, 1, 1_000_000)
        wait_until(lambda: len(slow.began) == count, why=f"{count} tries")  # noqa: B023
    assert not is_over(upkeep)


def test_a_dead_worker_is_taken_over_and_oneself_never(
    slow: SlowDriver, upkeep: Maintenance, closed: str
):
    """A late beat alone is no death; a worker does not knock at its own door."""
    slow.answers["late_workers"] = [Late("w:1", "7", HERE), Late(closed, "9", HERE)]
    slow.may_end.release(2)
    upkeep.told(1_000_000, 0, 0, 1_000_000 - settings.LATE_MS - 1)
    wait_until(lambda: len(slow.began) == 2, why="the dead one is taken over")
    assert slow.began == ["late_workers", "take_over"]


def test_a_request_that_cannot_be_read_is_told_once(
    lane: Lane, redis_url: str, caplog: pytest.LogCaptureFixture
):
    """It is the same at every look."""
    upkeep = Maintenance(redis_url, "req", "w:1")
    lane.client.set("req:{r1}", "text")
    for _ in range(2):
        lane.client.zadd(ACTIVE, {"r1": 1})
        upkeep._maintain(promote=False, look=True, late=False)
    assert [record.message.partition(":")[2][:11] for record in caplog.records] == [" request r1"]
    upkeep.close()
    lane.client.delete("req:{r1}")


# ------------------------------------------------------------------ rebuilding


@pytest.fixture
def leader(
    slow: SlowDriver, upkeep: Maintenance, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], None]:
    """A beat at so many seconds, while it leads an idle queue; a walk has one empty page."""
    moment = [0.0]
    monkeypatch.setattr("fairlane.clock.mono_s", lambda: moment[0])
    slow.answers["page"] = []
    monkeypatch.setattr(Walk, "is_over", property(lambda _: "page" in slow.began))
    slow.may_end.release(1000)

    def beat(seconds: float) -> None:
        moment[0] = seconds
        upkeep.told(1_000_000, 0, 0, 1_000_000)
        if upkeep._rebuilding is not None:
            upkeep._rebuilding.join(20)

    return beat


def test_an_idle_leader_walks_every_hour_and_asks_nothing_else(
    slow: SlowDriver, leader: Callable[[float], None]
):
    """The first time an hour after it began to lead."""
    walked = []
    for seconds in range(0, 3 * 3600, 5):
        leader(seconds)
        if slow.began:
            assert slow.began == ["page"]
            slow.began.clear()
            walked.append(seconds)
    assert walked == [3600, 7200]


def test_who_led_before_waits_an_hour_again(slow: SlowDriver, leader: Callable[[float], None]):
    """Somebody else has walked meanwhile, or not: a lead that moves often must not."""
    for seconds in (0, 5, 10, 3_700, 3_705, 7_290):
        leader(seconds)
    assert slow.began == []


def test_a_wiped_slot_is_rebuilt_soon(
    slow: SlowDriver, upkeep: Maintenance, leader: Callable[[float], None]
):
    """By the worker that leads then; the others forget it."""
    leader(100)
    upkeep.wiped()
    leader(105)
    assert slow.began == []
    leader(110)
    assert slow.began == ["page"]
    slow.began.clear()
    upkeep.wiped()
    leader(4000)
    assert slow.began == []


def test_the_leader_of_a_cluster_walks_soon(
    slow: SlowDriver, upkeep: Maintenance, leader: Callable[[float], None]
):
    """A failover may have been while nobody led."""
    slow.servers.is_one = False
    slow.answers["primaries"] = [("a", 1)]
    leader(100)
    wait_until(lambda: slow.began == ["primaries"], why="it asks who is there")
    leader(105)
    assert "page" not in slow.began
    leader(110)
    assert "page" in slow.began


def test_a_new_primary_is_followed_by_a_walk(slow: SlowDriver, upkeep: Maintenance):
    """And a look for lost tokens; one that is known, or gone, is not."""
    slow.servers.is_one = False
    slow.may_end.release(1000)
    walks = []
    for nodes in ("ab", "ab", "ac", "c", "cd"):
        slow.answers["primaries"] = [(node, 1) for node in nodes]
        upkeep._rebuild_at, upkeep._died_at = float("inf"), 0.0
        upkeep._look_for_new_primaries()
        walks.append(upkeep._rebuild_at < float("inf"))
        assert (upkeep._died_at > 0) == walks[-1]
    assert walks == [False, False, True, False, True]


@pytest.mark.parametrize("error", [RedisUnreachable("no answer"), ValueError("not ours")], ids=repr)
def test_a_walk_that_fails_is_begun_anew_a_minute_later(
    slow: SlowDriver, upkeep: Maintenance, leader: Callable[[float], None], error: Exception
):
    """Whatever it was."""
    leader(0)
    upkeep.wiped()
    slow.answers["page"] = error
    leader(5)
    leader(10)
    assert slow.began == ["page"]
    slow.began.clear()
    for seconds in (15, 60, 65):
        leader(seconds)
    assert slow.began == []
    leader(70)
    assert slow.began == ["page"]


def test_a_walk_puts_back_what_nobody_looks_after(
    lane: Lane, redis_url: str, caplog: pytest.LogCaptureFixture
):
    """On a real Redis; and says so."""
    lane.start(1)
    upkeep = Maintenance(redis_url, "req", "w:1")
    upkeep._rebuild()
    assert lane.client.zcard(ACTIVE) == 1
    assert [record.message for record in caplog.records] == [
        "fsck: request r1 is not in `active`: put it there"
    ]
    upkeep.close()


def test_a_walk_delays_no_upkeep_and_ends_with_the_worker(
    slow: SlowDriver, upkeep: Maintenance, monkeypatch: pytest.MonkeyPatch
):
    """It has a thread of its own, and is not begun twice."""
    slow.answers["page"] = []
    upkeep._led_at, upkeep._rebuild_at = time.monotonic(), 0.0
    upkeep.told(1_000_000, 0, 0, 1_000_000)
    wait_until(lambda: slow.began == ["page"], why="the walk begins")
    upkeep._rebuild_at = 0.0
    upkeep.told(1_000_000, 0, 1, 1_000_000)
    wait_until(lambda: slow.began == ["page", "promote"], why="upkeep goes on")
    closing = threading.Thread(target=upkeep.close)
    closing.start()
    wait_until(lambda: upkeep._is_closed, why="it is told to end")
    slow.may_end.release(2)
    closing.join(20)
    assert not closing.is_alive()
    assert slow.began == ["page", "promote"]
