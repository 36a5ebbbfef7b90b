"""Fixtures of the script tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.staging import Sink

if TYPE_CHECKING:
    from tests.support.scripts.requests import Lane


@pytest.fixture
def sink(lane: Lane) -> Sink:
    """Makes an open request `r1` without rows; a file with another beginning has its own."""
    made = Sink(lane)
    made.open()
    return made


@pytest.fixture
def one(lane: Lane) -> Lane:
    """Makes a request on a server that has all keys."""
    lane.driver.check()
    if lane.driver.is_cluster:
        pytest.skip("no server of a cluster has all keys")
    return lane
