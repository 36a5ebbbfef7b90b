"""Fixtures of the operation tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.queue import Queue

if TYPE_CHECKING:
    from fairlane.drivers.sync import SyncDriver


@pytest.fixture
def queue(driver: SyncDriver) -> Queue:
    """The blocking face of the queue `req`."""
    return Queue(driver)
