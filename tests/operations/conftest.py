"""Fixtures of the operation tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.queue import Queue
from tests.support.actor import Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.drivers.sync.driver import SyncDriver


@pytest.fixture
def queue(driver: SyncDriver) -> Queue:
    """The blocking face of the queue `req`."""
    return Queue(driver)


@pytest.fixture
def act() -> Iterator[Callable[..., Actor]]:
    """Makes drivers, and closes them."""
    with contextlib.ExitStack() as later:

        def made(*args: Any, **options: Any) -> Actor:
            actor = Actor(*args, **options)
            later.callback(actor.close)
            return actor

        yield made
