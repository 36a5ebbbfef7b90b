"""Tests when the leader runs which duty: each in its own thread, without delay of a lease."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.errors import FairlaneError, QueueFull, RedisUnreachable
from fairlane.operations.schedules import Fired
from fairlane.operations.workers import Late
from fairlane.worker.board import LeaseBoard
from fairlane.worker.leader import NEVER, Beat, Maintenance
from tests.support.operations.upkeep import ACTIVE
from tests.support.scripts.requests import MINUTE
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.maintenance.test_leader import (
    HERE,
    NOWHERE,
    FakeDriver,
    beaten,
    closed,
    driver,
    extended,
    heartbeat_of,
    keeper_of,
    lane,
)
from tests.worker.parts import OP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.protocol.steps import Call
    from tests.support.scripts.requests import Lane

__all__ = ["closed", "driver", "lane"]  # fixtures
NOW = 1_000_000
GRACE_S, AUDIT_S = settings.DEATH_GRACE_MS / 1000, settings.AUDIT_S


class SlowDriver:
    """A driver whose operations take until the test releases them."""

    url = NOWHERE

    def __init__(self) -> None:
        self.servers = SimpleNamespace(is_one=True, forget_slots=lambda: None)
        self.began: list[str] = []
        self.may_end = threading.Semaphore(0)
        self.answers: dict[str, Any] = {}

    def run(self, operation: Any) -> Any:
        """Runs nothing on Redis."""
        name = operation.__qualname__
        operation.close()
        self.began.append(name)
        assert self.may_end.acquire(timeout=PATIENCE_S)
        answer = self.answers.get(name, 0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


class NoThread:
    """A thread that never begins."""

    def __init__(self, **_: Any) -> None: ...
    def start(self) -> None: ...
    def join(self, _: float) -> None: ...


@pytest.fixture
def slow() -> SlowDriver:
    """The driver of a maintenance."""
    return SlowDriver()


@pytest.fixture
def upkeep(slow: SlowDriver) -> Iterator[Maintenance]:
    """The duties of a worker; no thread has begun yet."""
    made = Maintenance(NOWHERE, "req", "w:1", slow)  # type: ignore[arg-type]
    yield made
    slow.may_end.release(1000)
    made.close()


@pytest.fixture
def quick(slow: SlowDriver) -> SlowDriver:
    """The same driver, which answers immediately."""
    slow.may_end.release(1000)
    return slow


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: its one number is the time; the threads of duties do not begin."""
    made = [100.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: made[0])
    still = SimpleNamespace(Thread=NoThread, Condition=threading.Condition)
    monkeypatch.setattr("fairlane.worker.leader.threading", still)
    return made


def lead(
    upkeep: Maintenance,
    active: int = 0,
    delayed: int = 0,
    oldest: int = NOW,
    died: int = 0,
    tick: int = 0,
) -> None:
    """Sends a heartbeat of the leader at second 1,000 of the server's clock."""
    upkeep.on_beat_as_leader(Beat(NOW, active, delayed, oldest, died, tick))


def threads() -> set[str]:
    """Returns the names of the threads that run now."""
    return {thread.name for thread in threading.enumerate()}


# ------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    ("due", "name"),
    [({"delayed_due": 1}, "promote"), ({"active_due": 1}, "look_after")],
    ids=["promote", "look"],
)
def test_upkeep_that_takes_long_delays_no_tick(
    slow: SlowDriver, upkeep: Maintenance, due: dict[str, int], name: str
):
    """Leases are extended and heartbeats are sent while it is under way."""
    board = LeaseBoard(1)
    driver = FakeDriver(extend=lambda _: [b"ok"], heartbeat=lambda _: beaten(leads=1, **due))
    keeper, heartbeat = keeper_of(driver, board), heartbeat_of(driver, board)
    heartbeat._maintenance = upkeep
    heartbeat._beaten = 0.0
    heartbeat.tick(often=False)
    wait_until(lambda: name in slow.began, why=f"{name} is under way")
    taken = time.monotonic() - 11
    board.records[0].hold("r1", "0", 7, OP, taken, 30.0)
    for _ in range(3):
        keeper.tick()
        heartbeat._beaten = 0.0
        heartbeat.tick(often=False)
    assert driver.called == ["heartbeat", "extend", "heartbeat", "heartbeat", "heartbeat"]
    assert extended(board)[0] > taken + 30
    assert slow.began.count(name) == 1


def test_one_duty_that_takes_long_delays_no_other(slow: SlowDriver, upkeep: Maintenance):
    """Its node may be away: retries of others are promoted, and dead workers are taken over."""
    lead(upkeep, active=1, delayed=1, oldest=1)
    wanted = {"look_after", "Audit.run", "promote", "late_workers"}
    wait_until(lambda: wanted <= set(slow.began), why="all of them are under way")


def test_a_tick_is_due_at_its_time_and_the_next_one_without_a_beat(
    quick: SlowDriver, upkeep: Maintenance, now: list[float]
):
    quick.answers["fire"] = Fired(NOW, NOW + 3_000)
    lead(upkeep, tick=NOW + 2_000)
    assert upkeep.fire.at == now[0] + 2
    assert upkeep._fire() == now[0] + 3
    lead(upkeep)
    assert upkeep.fire.at == NEVER, "its schedule was removed"


def test_a_pass_follows_the_other_until_nothing_moves(quick: SlowDriver, upkeep: Maintenance):
    passes = [Fired(NOW, 0, has_moved=True), Fired(NOW, 0, has_moved=True), Fired(NOW, 0)]
    quick.answers["fire"] = lambda: passes.pop(0)
    assert upkeep._fire() == NEVER
    assert passes == []


def test_a_tick_that_cannot_be_submitted_is_tried_again_after_a_pause(
    quick: SlowDriver, upkeep: Maintenance, now: list[float], caplog: pytest.LogCaptureFixture
):
    """It is overdue, so each heartbeat would make it due; ticks of other schedules do not wait."""
    full = QueueFull("no room")
    refused: dict[str, FairlaneError] = {"daily": full}
    quick.answers["fire"] = Fired(NOW, NOW + 60_000, full=full, waiting=refused)
    assert upkeep._fire() == now[0] + settings.SCHEDULES_AGAIN_S
    assert caplog.messages == ["schedule daily: no room; trying again"]
    lead(upkeep, tick=NOW - 1_000)
    assert upkeep.fire.at == now[0] + settings.SCHEDULES_AGAIN_S
    quick.answers["fire"] = Fired(NOW, NOW + 2_000, waiting=refused)
    assert upkeep._fire() == now[0] + 2
    lead(upkeep, tick=NOW - 1_000)
    assert upkeep.fire.at == now[0] + 2
    now[0] += settings.SCHEDULES_AGAIN_S
    lead(upkeep, tick=NOW - 1_000)
    assert upkeep.fire.at == now[0]


def test_a_follower_submits_no_tick(upkeep: Maintenance, now: list[float]):
    lead(upkeep, tick=NOW)
    assert upkeep.fire.at == now[0]
    upkeep.on_beat_as_follower(Beat(NOW, 0, 0, NOW, 0, NOW))
    assert upkeep.fire.at == NEVER


def test_nothing_is_started_while_nothing_is_due(slow: SlowDriver, upkeep: Maintenance):
    """Not even a thread starts; closing what never began works."""
    before = threads()
    for _ in range(3):
        lead(upkeep)
    assert threads() == before
    upkeep.close()
    assert slow.began == []


def test_close_ends_all_threads_after_the_calls_they_are_in(slow: SlowDriver, upkeep: Maintenance):
    before = threads()
    lead(upkeep, active=1, delayed=1)
    wait_until(lambda: len(slow.began) == 3, why="they begin")
    lead(upkeep, active=1, delayed=1, oldest=1)
    wait_until(lambda: len(slow.began) == 4, why="the next one begins")
    closing = threading.Thread(target=upkeep.close)
    closing.start()
    wait_until(lambda: upkeep.promote._is_closed, why="it is closed")
    slow.may_end.release(1000)
    closing.join(20)
    assert threads() <= before
    assert slow.began.count("promote") == 1


def test_a_worker_that_leads_no_more_begins_nothing_for_the_queue(
    now: list[float], upkeep: Maintenance
):
    """Another worker does it."""
    lead(upkeep, active=1, delayed=1, died=1)
    upkeep.on_beat_as_follower(Beat(NOW, 0, 0, NOW, 0))
    duties = (upkeep.look, upkeep.promote, upkeep.move, upkeep.audit, upkeep.primaries)
    assert {duty.at for duty in duties} == {NEVER}


# ------------------------------------------------------------------ checks, promotion, moves


def test_what_is_due_by_the_servers_clock_is_due_by_ours(now: list[float], upkeep: Maintenance):
    """The difference counts, and a heartbeat may postpone it again."""
    lead(upkeep, active=NOW + MINUTE, delayed=NOW + 2 * MINUTE)
    assert (upkeep.look.at, upkeep.promote.at) == (160.0, 220.0)
    lead(upkeep, active=NOW - 1, delayed=NOW + 3 * MINUTE)
    assert (upkeep.look.at, upkeep.promote.at) == (100.0, 280.0)
    lead(upkeep)
    assert (upkeep.look.at, upkeep.promote.at) == (NEVER, NEVER)


@pytest.mark.parametrize("is_moving", [False, True])
def test_the_shards_of_a_queue_are_promoted_with_every_beat(
    now: list[float], upkeep: Maintenance, is_moving: bool
):
    """No heartbeat reads what is due there; requests are moved while any must be."""
    upkeep.spread((3, 4), is_moving=is_moving)
    lead(upkeep)
    assert upkeep.promote.at == 100.0
    assert upkeep.move.at == (100.0 if is_moving else NEVER)


def test_a_beat_is_followed_by_one_pass_of_looks(quick: SlowDriver, upkeep: Maintenance):
    """There is one, however many are due: checks take time of Redis, and others work there."""
    quick.answers["look_after"] = settings.MAINTAIN_MOST
    assert upkeep._look() == NEVER
    assert quick.began == ["look_after", "report_backlog"]


def test_a_look_ends_with_the_worker(quick: SlowDriver, upkeep: Maintenance, now: list[float]):
    """It ends whatever is still due."""
    quick.answers["look_after"] = settings.MAINTAIN_MOST
    upkeep.close()
    assert upkeep._look() == NEVER
    assert quick.began == ["look_after", "report_backlog"]


def test_a_request_that_cannot_be_read_is_logged_once(
    lane: Lane, redis_url: str, caplog: pytest.LogCaptureFixture
):
    """Its error is the same at every check and every audit."""
    upkeep = Maintenance(redis_url, "req", "w:1")
    lane.client.set("req:{r1}", "text")
    for duty in (upkeep._look, upkeep._audit, upkeep._look):
        lane.client.zadd(ACTIVE, {"r1": 1.5})
        duty()
    assert [record.message.partition(":")[2][:11] for record in caplog.records] == [" request r1"]
    upkeep.close()
    lane.client.delete("req:{r1}")


def test_the_log_is_trimmed_every_few_seconds_while_there_are_requests(
    now: list[float], quick: SlowDriver, upkeep: Maintenance
):
    lead(upkeep)
    assert upkeep.trim.at == NEVER
    lead(upkeep, active=NOW - 1)
    assert upkeep.trim.at <= now[0]
    upkeep.trim.set(NEVER)
    assert upkeep._trim() == NEVER
    assert quick.began == ["trim"]
    lead(upkeep, active=NOW - 1)
    assert upkeep.trim.at == now[0] + settings.LOG_TRIM_S


# ------------------------------------------------------------------ audits


@pytest.fixture
def audited(quick: SlowDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the grace of each audit that ran."""
    graces: list[int] = []

    def run(_: Any, grace_ms: int, failed: Any) -> Any:
        graces.append(grace_ms)
        yield failed

    monkeypatch.setattr("fairlane.operations.audit.Audit.run", run)
    return graces


@pytest.fixture
def runs(upkeep: Maintenance, slow: SlowDriver, now: list[float], audited: list[int]) -> Any:
    """Runs the audit as its thread does, which takes so many seconds."""

    def run(seconds: float = 0.0) -> None:
        upkeep.audit._at = NEVER
        take = lambda operation: (operation.send(None), now.__setitem__(0, now[0] + seconds))  # noqa: E731
        slow.run = take  # type: ignore[method-assign]
        upkeep.audit.due(upkeep._audit())

    return run


def test_audits_come_every_few_seconds_while_there_are_requests(
    now: list[float], upkeep: Maintenance, runs: Any, audited: list[int]
):
    """The first one is a second after a worker began to lead; without requests there are none."""
    began = now[0]
    lead(upkeep)
    assert upkeep.audit.at == NEVER
    lead(upkeep, active=NOW + MINUTE)
    assert upkeep.audit.at == began + settings.AUDIT_FIRST_S
    runs()
    assert upkeep.audit.at == NEVER, "the next beat makes it due"
    lead(upkeep, active=NOW + MINUTE)
    assert upkeep.audit.at == now[0] + AUDIT_S
    assert audited == [settings.TOKEN_GRACE_MS]


def test_an_audit_that_takes_long_is_followed_by_a_longer_rest(
    now: list[float], upkeep: Maintenance, runs: Any
):
    """So it costs a few percent of Redis."""
    runs(0.5)
    lead(upkeep, active=1)
    assert upkeep.audit.at == now[0] + settings.AUDIT_REST_FACTOR * 0.5


def test_no_beat_makes_an_audit_due_while_one_runs(
    now: list[float], upkeep: Maintenance, slow: SlowDriver, audited: list[int]
):
    """Otherwise a long one would be followed by the next without a rest."""
    lead(upkeep, active=1)
    upkeep.audit._at = NEVER

    def run(operation: Any) -> None:
        operation.close()
        now[0] += 2 * AUDIT_S
        lead(upkeep, active=1)

    slow.run = run  # type: ignore[method-assign]
    upkeep.audit.due(upkeep._audit())
    assert upkeep.audit.at == NEVER


def test_an_audit_that_fails_is_repeated_after_its_pause(
    now: list[float], upkeep: Maintenance, quick: SlowDriver
):
    quick.answers["Audit.run"] = RedisUnreachable("no answer")
    with pytest.raises(RedisUnreachable):
        upkeep._audit()
    lead(upkeep, active=1)
    assert upkeep.audit.at == now[0] + AUDIT_S


def test_tokens_are_looked_for_a_grace_after_a_death(
    now: list[float], upkeep: Maintenance, runs: Any, audited: list[int]
):
    """Tokens that were minted just now may be on their way. Each death counts once."""
    upkeep._audited_at = now[0] + 1000
    lead(upkeep, active=1, died=NOW)
    assert upkeep.audit.at == now[0] + GRACE_S
    now[0] += GRACE_S
    runs()
    upkeep._audited_at = now[0] + 1000
    lead(upkeep, active=1, died=NOW)
    assert upkeep.audit.at == upkeep._audited_at
    assert audited == [settings.DEATH_GRACE_MS]


def test_a_new_leader_looks_for_the_tokens_of_an_old_death(now: list[float], upkeep: Maintenance):
    """It may have begun to lead because the leader died."""
    lead(upkeep, died=NOW - MINUTE)
    assert upkeep.audit.at == now[0]


def test_a_clock_that_was_set_back_puts_no_audit_off(now: list[float], upkeep: Maintenance):
    """A death that lies ahead has its grace from now on."""
    lead(upkeep, died=NOW + 10 * MINUTE)
    assert upkeep.audit.at == now[0] + GRACE_S


def test_a_second_death_has_a_grace_of_its_own(
    now: list[float], upkeep: Maintenance, runs: Any, audited: list[int]
):
    """The first audit runs when it was due, and another one for the later death."""
    began = now[0]
    upkeep._audited_at = began + 1000
    upkeep.audit_after_death(began + GRACE_S)
    upkeep.audit_after_death(began + GRACE_S + 0.5)
    assert upkeep.audit.at == began + GRACE_S
    now[0] = began + GRACE_S
    runs()
    assert upkeep.audit.at == began + GRACE_S + 0.5
    now[0] = began + GRACE_S + 0.5
    runs()
    assert audited == [settings.DEATH_GRACE_MS] * 2
    assert upkeep.audit.at == NEVER, "a death is no reason to poll"


def test_one_death_after_the_other_puts_no_audit_off(
    now: list[float], upkeep: Maintenance, runs: Any, audited: list[int]
):
    """A body that kills its workers may do so every second."""
    for _ in range(5):
        upkeep.audit_after_death(now[0] + GRACE_S)
        if upkeep.audit.at <= now[0]:
            runs()
        now[0] += GRACE_S
    assert audited == [settings.DEATH_GRACE_MS] * 4


# ------------------------------------------------------------------ deaths


@pytest.mark.parametrize(
    ("age", "tries"),
    [
        (0, False),
        (settings.PROBE_AFTER_MS, False),
        (settings.PROBE_AFTER_MS + 1, True),
        (settings.PROBE_AFTER_MS + settings.BEAT_MS, True),
        (settings.PROBE_AFTER_MS + settings.BEAT_MS + 1, False),
    ],
)
def test_a_worker_that_does_not_lead_tries_the_port_of_a_fresh_death(
    now: list[float], upkeep: Maintenance, age: int, tries: bool
):
    """This happens once; a worker that stays late, and does not refuse, is left to the leader."""
    upkeep.on_beat_as_follower(Beat(NOW, 0, 0, NOW - age, 0))
    assert (upkeep.take_over.at < NEVER) == tries


@pytest.mark.parametrize("late", [settings.PROBE_AFTER_MS, settings.PROBE_AFTER_MS + 1, MINUTE])
def test_the_leader_tries_the_ports_of_all_that_are_late(
    now: list[float], upkeep: Maintenance, late: int
):
    lead(upkeep, oldest=NOW - late)
    assert (upkeep.take_over.at < NEVER) == (late > settings.PROBE_AFTER_MS)


def test_a_dead_worker_is_taken_over_and_the_worker_itself_never(
    quick: SlowDriver, upkeep: Maintenance, closed: str, now: list[float]
):
    """A late heartbeat alone is no death; each death is reported with the next heartbeat."""
    reported: list[bool] = []
    upkeep.on_death = lambda: reported.append(True)
    quick.answers["late_workers"] = [Late("w:1", "7", HERE), Late(closed, "9", HERE)]
    assert upkeep._take_over() == NEVER
    assert quick.began == ["late_workers", "take_over"]
    assert reported == [True]


def test_a_worker_that_finds_a_death_reports_it_with_its_next_beat():
    """Any worker may find it, and the leader looks for the tokens."""
    words: list[Any] = []

    def beat(call: Call[Any]) -> list[Any]:
        words.append(call.args[call.script.params.index("died")])
        return beaten()

    heartbeat = heartbeat_of(FakeDriver(heartbeat=beat), LeaseBoard(1))
    heartbeat._maintenance.on_death()
    assert heartbeat.until_beat_s == 0.0
    for _ in range(2):
        heartbeat._beaten = 0.0
        heartbeat.tick(often=False)
    assert words == ["1", ""]


def test_a_worker_that_is_closed_begins_nothing(now: list[float], upkeep: Maintenance):
    """Its own processes die last of all."""
    before = threads()
    upkeep.close()
    upkeep.audit_after_death(0.0)
    assert threads() == before
