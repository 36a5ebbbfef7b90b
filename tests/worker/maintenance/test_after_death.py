"""Tests the search for a dead process's tokens, also after a broken connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import RedisUnreachable
from fairlane.operations.audit import Audit
from fairlane.protocol import keys
from fairlane.worker.board import LeaseBoard
from fairlane.worker.heartbeat import Heartbeat
from fairlane.worker.leader import NEVER
from tests.support.operations.upkeep import HOME, server_ms

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver
    from tests.support.scripts.requests import Lane

NOW = 1_000_000
GRACE = 600_000  # a busy machine does not need so long for a test


# ------------------------------------------------------------------ in Redis


@pytest.mark.parametrize(("age_ms", "minted"), [(GRACE - 60_000, 0), (GRACE + 1, 3)])
def test_what_a_dead_process_had_in_its_hands_is_minted_again(
    lane: Lane, driver: SyncDriver, age_ms: int, minted: int
):
    """It is sooner than the usual grace; a younger token may be on its way."""
    lane.now = server_ms(lane.client) - age_ms
    lane.start(3)
    lane.client.zadd(keys.active("req"), {"r1": 9e12})
    assert driver.run(Audit("req").run(GRACE)) == minted
    assert lane.client.llen(HOME) == minted
    assert driver.run(Audit("req").run(GRACE)) == 0


# ------------------------------------------------------------------ broken connections


class CutDriver:
    """A driver whose connection breaks at some calls; its heartbeats name the leader, one fails."""

    url = "redis://127.0.0.1:1"

    def __init__(self, leads: int) -> None:
        self.leads = leads
        self.on_cut: Any = None
        self.breaks = self.fails = False
        self.reported: list[bool] = []

    def run(self, operation: Any) -> Any:
        """Replies as heartbeat does."""
        call = operation.send(None)
        died = call.args[call.script.params.index("died")]
        self.reported.append(died == "1")
        if self.breaks:
            self.on_cut()
        if self.fails:
            raise RedisUnreachable("no answer")
        return call.read(
            [b"ok", self.leads, NOW, 0, 0, NOW, b"", b"", NOW if died else 0, 0, 0, b"", 0]
        )


def beats(heartbeat: Heartbeat, driver: CutDriver, *, breaks: bool = False) -> bool:
    """Sends one heartbeat; returns whether a death was reported with it."""
    driver.breaks = breaks
    heartbeat._beat()
    return driver.reported[-1]


@pytest.mark.parametrize("leads", [0, 1])
def test_the_leader_reports_that_its_connection_broke(leads: int):
    """Tokens may be lost with replies to pops: a cut of one connection often cuts them all."""
    driver = CutDriver(leads)
    heartbeat = Heartbeat(driver, "req", "w:1", LeaseBoard(1))  # type: ignore[arg-type]
    found = [
        beats(heartbeat, driver),
        beats(heartbeat, driver, breaks=True),
        beats(heartbeat, driver),
    ]
    assert found == [False, False, bool(leads)]
    assert beats(heartbeat, driver) is False, "once"
    audit = heartbeat._maintenance.audit
    assert (audit.at < NEVER) == bool(leads)
    heartbeat._maintenance.close()


def test_a_death_is_reported_with_a_beat_that_is_due_now():
    driver = CutDriver(0)
    heartbeat = Heartbeat(driver, "req", "w:1", LeaseBoard(1))  # type: ignore[arg-type]
    assert heartbeat.until_beat_s > 0
    heartbeat.on_process_death()
    assert heartbeat.until_beat_s == 0
    assert [beats(heartbeat, driver), beats(heartbeat, driver)] == [True, False]
    heartbeat._maintenance.close()


def test_a_death_whose_beat_fails_is_reported_with_the_next():
    driver = CutDriver(0)
    heartbeat = Heartbeat(driver, "req", "w:1", LeaseBoard(1))  # type: ignore[arg-type]
    heartbeat.on_process_death()
    driver.fails = True
    with pytest.raises(RedisUnreachable):
        heartbeat._beat()
    driver.fails = False
    assert [beats(heartbeat, driver), beats(heartbeat, driver)] == [True, False]
    heartbeat._maintenance.close()
