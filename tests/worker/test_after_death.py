"""A death is noticed by whoever beats next, and what was in the dead one's hands is looked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import keys, settings
from fairlane.operations import maintain
from fairlane.worker.board import Board
from fairlane.worker.keeper import Keeper
from fairlane.worker.maintenance import Maintenance
from tests.operations.test_maintain import HOME, server_ms
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.drivers.sync import SyncDriver
    from tests.support.requests import Lane

NOW = 1_000_000


class NotedDriver:
    """Notes what is begun; nothing is asked of Redis."""

    url = "redis://127.0.0.1:1"

    def __init__(self) -> None:
        self.began: list[str] = []
        self.heard = threading.Event()

    def run(self, operation: Any) -> Any:
        name = operation.__name__
        operation.close()
        self.began.append(name)
        self.heard.set()
        return []


@pytest.fixture
def noted() -> NotedDriver:
    """What the thread talks to."""
    return NotedDriver()


@pytest.fixture
def upkeep(noted: NotedDriver) -> Iterator[Maintenance]:
    """The thread of a worker that does not lead."""
    made = Maintenance(noted.url, "req", "w:1")
    made._driver = noted  # type: ignore[assignment]
    yield made
    made.close()


# ------------------------------------------------------------------ the thread


@pytest.mark.parametrize(
    ("age", "knocks"),
    [
        (0, False),
        (settings.KNOCK_MS, False),
        (settings.KNOCK_MS + 1, True),
        (settings.KNOCK_MS + settings.BEAT_MS, True),
        (settings.KNOCK_MS + settings.BEAT_MS + 1, False),
    ],
)
def test_who_does_not_lead_knocks_at_a_fresh_death(
    noted: NotedDriver, upkeep: Maintenance, age: int, knocks: bool
):
    """Once; who stays late, and does not refuse, is the leader's business."""
    upkeep.glimpsed(NOW, NOW - age)
    assert (upkeep._thread is not None) == knocks
    if knocks:
        assert noted.heard.wait(20)
        assert noted.began == ["late_workers"]


def test_tokens_are_looked_for_a_grace_after_a_death(
    noted: NotedDriver, upkeep: Maintenance, monkeypatch: pytest.MonkeyPatch
):
    """Not before: what was minted just now may be on its way."""
    clock = [100.0]
    monkeypatch.setattr("fairlane.clock.mono_s", lambda: clock[0])
    upkeep.died()
    clock[0] += settings.DEATH_GRACE_MS / 1000 - 0.01
    upkeep.glimpsed(NOW, NOW)
    assert noted.began == []
    clock[0] += 0.01
    assert noted.heard.wait(20)
    assert noted.began == ["audit"]


def test_a_second_death_has_a_grace_of_its_own(upkeep: Maintenance):
    """The first look comes when it was due, and another for what died later."""
    grace = settings.DEATH_GRACE_MS / 1000
    upkeep._audit_at, upkeep._died_at = 100.0 + grace, 100.5
    assert not upkeep._is_audit_due(100.0 + grace - 0.001)
    assert upkeep._is_audit_due(100.0 + grace)
    assert upkeep._audit_at == 100.5 + grace
    assert upkeep._is_audit_due(100.5 + grace)
    assert upkeep._audit_at == float("inf")


def test_who_is_closed_begins_nothing(noted: NotedDriver, upkeep: Maintenance):
    """Its own processes die last of all."""
    upkeep.close()
    upkeep.died()
    assert upkeep._thread is None
    assert noted.began == []


# ------------------------------------------------------------------ in Redis


@pytest.mark.parametrize(
    ("age_ms", "minted"), [(settings.DEATH_GRACE_MS - 500, 0), (settings.DEATH_GRACE_MS + 1, 3)]
)
def test_what_a_dead_process_had_in_its_hands_is_minted_again(
    lane: Lane, driver: SyncDriver, age_ms: int, minted: int
):
    """Sooner than the usual grace; what is younger than a grace may be on its way."""
    lane.now = server_ms(lane.client) - age_ms
    lane.start(3)
    lane.client.zadd(keys.active("req"), {"r1": 9e12})
    assert driver.run(maintain.audit("req")) == minted
    assert lane.client.llen(HOME) == minted
    assert driver.run(maintain.audit("req")) == 0


def test_one_bad_request_does_not_keep_the_others_from_their_tokens(lane: Lane, driver: SyncDriver):
    """Nor does a name that nobody of ours wrote."""
    lane.now = server_ms(lane.client) - settings.TOKEN_GRACE_MS
    lane.start(1)
    lane.client.set(keys.permits("a1"), "no hash")
    lane.client.zadd(keys.active("req"), {"a1": 1, "{": 2, "r1": 9e12})
    assert driver.run(maintain.audit("req")) == 1
    lane.client.delete(keys.permits("a1"))
    lane.client.zrem(keys.active("req"), "a1", "{")


def test_a_grace_is_no_reason_to_poll(noted: NotedDriver, upkeep: Maintenance):
    """One look, and then nothing is due."""
    upkeep.died()
    wait_until(lambda: noted.began == ["audit"], why="it looks")
    assert upkeep._next() == float("inf")


# ------------------------------------------------------------------ broken connections


class CutDriver(NotedDriver):
    """Its connection breaks at every call; the leader's beat says so."""

    def __init__(self, leads: int) -> None:
        super().__init__()
        self.leads = leads
        self.on_cut: Any = None

    def run(self, operation: Any) -> Any:
        super().run(operation)
        self.on_cut()
        return [b"ok", self.leads, NOW, 0, 0, NOW, b"", b""]


@pytest.mark.parametrize("leads", [0, 1])
def test_the_leader_looks_for_tokens_after_its_connection_broke(leads: int):
    """They may have gone with the answers to pops: whoever cuts one line mostly cuts them all."""
    keeper = Keeper(CutDriver(leads), "req", "w:1", Board(1))  # type: ignore[arg-type]
    upkeep = keeper._maintenance
    for _ in range(2):  # the first beat tells who leads
        keeper._beat()
    assert (upkeep._audit_at < float("inf")) == bool(leads)
    upkeep.close()
