"""Tests a worker's heartbeats: what it logs, and what it does when its record is gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlane.errors import RedisUnreachable
from fairlane.protocol import scripts
from fairlane.worker.board import LeaseBoard
from fairlane.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    import pytest

    from fairlane.protocol.steps import Operation


class Emptied:
    """A driver to a Redis that was emptied."""

    url = "redis://127.0.0.1:1"

    def __init__(self) -> None:
        self.began: list[str] = []

    def run(self, operation: Any) -> Any:
        """Replies as the scripts do."""
        self.began.append(operation.__name__)
        operation.close()
        if self.began[-1] == "heartbeat":
            return scripts.HeartbeatReply.of([b"unknown"])
        return scripts.RegisterWorkerReply.of([b"ok"]), ""


def test_an_outage_is_logged_once_a_minute_and_so_is_its_end(
    now: list[float], caplog: pytest.LogCaptureFixture
):
    """One answered heartbeat does not end an outage. One of two parts may fail for long."""
    driver = Beats()
    heartbeat = Heartbeat(driver, "req", "w:1", LeaseBoard(1))  # type: ignore[arg-type]
    caplog.set_level(logging.INFO)
    away, back = "no answer; trying again", "Redis answers again"
    for second, is_up, logged in [
        *((1, False, [away]), (59, False, [away]), (62, False, [away] * 2)),
        *((63, True, [away] * 2), (65, True, [away, away, back])),
        *((68, False, [away, away, back]), (71, True, [away, away, back])),
        *((123, False, [away, away, back, away]), (126, True, [away, away, back, away, back])),
    ]:
        now[0], driver.is_up = 200.0 + second, is_up
        heartbeat.tick(often=False)
        assert caplog.messages == logged


class Beats:
    """A driver whose server answers each call, or none."""

    url = "redis://127.0.0.1:1"
    is_up = True

    def run(self, operation: Operation[Any]) -> Any:
        """Returns the reply to a heartbeat of a worker that does not lead."""
        operation.close()
        if not self.is_up:
            raise RedisUnreachable("no answer")
        return scripts.HeartbeatReply.of([b"ok", 0, 0, 0, 0, 0, b"0", b"", 0, 0, 0, b"", 0])


def test_a_worker_that_is_not_in_the_registry_logs_it_and_registers(
    now: list[float], caplog: pytest.LogCaptureFixture
):
    """It may have lost everything, so a person must see it."""
    driver: Any = Emptied()
    heartbeat = Heartbeat(driver, "req", "w:1", LeaseBoard(1))
    heartbeat.on_registered = lambda: driver.began.append("schedules of its apps")
    now[0] = 200.0
    heartbeat.tick(often=False)
    assert driver.began == ["heartbeat", "register_worker", "schedules of its apps"]
    assert not heartbeat.must_drain
    assert caplog.messages == [
        "worker w:1 is not in the registry any more (was Redis emptied?): it registers anew"
    ]
