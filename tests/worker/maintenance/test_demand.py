"""Tests the demand of a queue in its leader's metrics: measured only while they are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from fairlane.records import Demand
from fairlane.worker.leader import EVERY_S, NEVER, Beat, DemandGauge, Maintenance
from tests.support.scripts.snapshots import NO_BACKLOG
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.maintenance.test_leader import NOWHERE
from tests.worker.parts import ON_SINGLE

if TYPE_CHECKING:
    from fairlane.queue import Queue
    from tests.support.processes.workers import Workers

FOUND = Demand("req", NO_BACKLOG, 7, 2, 3, is_paused=False, is_exact=True)


class Answering:
    """A driver whose operations all return the same demand."""

    def __init__(self) -> None:
        self.servers = SimpleNamespace(is_one=True, forget_slots=lambda: None)
        self.count = 0

    def run(self, operation: Any) -> Demand:
        operation.close()
        self.count += 1
        return FOUND


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: its one number is the time."""
    made = [1_000.0]
    monkeypatch.setattr("fairlane.common.clock.mono_s", lambda: made[0])
    return made


def test_it_is_measured_every_few_seconds_while_something_asks(now: list[float]):
    gauge = DemandGauge(Answering(), "req")  # type: ignore[arg-type]
    assert gauge.ask() is None
    assert gauge.measure() == now[0] + EVERY_S
    assert gauge.ask() == FOUND
    now[0] += 149.0
    assert gauge.measure() == now[0] + EVERY_S
    now[0] += 2.0
    assert gauge.measure() == NEVER


def test_an_old_value_is_not_shown(now: list[float]):
    gauge = DemandGauge(Answering(), "req")  # type: ignore[arg-type]
    gauge.measure()
    now[0] += 34.0
    assert gauge.ask() == FOUND
    now[0] += 2.0
    assert gauge.ask() is None


def test_the_longer_it_takes_the_longer_the_pause(now: list[float]):
    class Slow(Answering):
        def run(self, operation: Any) -> Demand:
            now[0] += 2.0
            return super().run(operation)

    gauge = DemandGauge(Slow(), "req")  # type: ignore[arg-type]
    gauge.ask()
    assert gauge.measure() == gauge.next_at == 1_002.0 + 40.0


def test_only_the_leader_measures_it():
    driver = Answering()
    upkeep = Maintenance(NOWHERE, "req", "w:1", driver)  # type: ignore[arg-type]
    beat = Beat(1_000_000, 0, 0, 1_000_000, 0)
    upkeep.on_beat_as_follower(beat)
    assert upkeep.demand() is None
    assert upkeep.measure.at == NEVER
    upkeep.on_beat_as_leader(beat)
    assert upkeep.measure.at == NEVER  # nothing has asked yet
    assert upkeep.demand() is None
    wait_until(lambda: upkeep.demand() == FOUND)
    upkeep.on_beat_as_follower(beat)
    assert upkeep.demand() is None
    assert upkeep.measure.at == NEVER
    upkeep.close()


@ON_SINGLE
def test_the_metrics_of_a_worker_have_the_demand_of_its_queue(queue: Queue, workers: Workers):
    worker = workers.start("echo")
    request = queue.submit_request([b"x"] * 10, limit=4, delay=3600)
    ready = queue.submit_request([b"x"], limit=4)
    ready.wait(PATIENCE_S)

    def metrics() -> list[str]:
        with urlopen(f"http://{worker.id}/metrics", timeout=PATIENCE_S) as answer:
            lines: list[str] = answer.read().decode().splitlines()
            return lines

    wait_until(lambda: 'fairlane_queue_demand{queue="req"} 0' in metrics())
    assert "# TYPE fairlane_queue_wanted gauge" in metrics()
    request.cancel()
