"""Fixture: the driver that the tests of flows use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.operations.flows.parts import Plain

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver


@pytest.fixture
def plain(driver: SyncDriver, redis_client: Any) -> Any:
    return Plain(driver, redis_client)
