"""Fixtures of the tests that drive a unit step by step."""

from __future__ import annotations

from itertools import count

import pytest

from fairlane.common import clock


@pytest.fixture(autouse=True)
def quick_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a call of a handler take a microsecond, also if the system stops this process."""
    monkeypatch.setattr("fairlane.worker.calls.perf_counter_ns", count(0, 1_000).__next__)


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves the clock on by a microsecond at each look."""
    began, looks = clock.mono_s(), count()
    monkeypatch.setattr(clock, "mono_s", lambda: began + next(looks) / 1e6)
