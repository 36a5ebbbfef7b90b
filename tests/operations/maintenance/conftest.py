"""Fixtures: requests as maintenance finds them."""

from __future__ import annotations

import pytest

from tests.support.operations.upkeep import server_ms
from tests.support.scripts.requests import MINUTE, Lane


@pytest.fixture
def lane(lane: Lane) -> Lane:
    """Makes the request `r1`, as of now."""
    lane.now = server_ms(lane.client)
    return lane


@pytest.fixture
def old(lane: Lane) -> Lane:
    """Makes the request `r1`, as of a minute ago: what is queued then has been queued for long."""
    lane.later(-MINUTE)
    return lane
