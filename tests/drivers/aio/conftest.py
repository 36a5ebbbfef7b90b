"""Fixture: a fake server for the tests of the asyncio driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.network.fakes import FakeServer, fake_servers
from tests.support.operations.lines import Says

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """Runs a server that answers ECHO."""
    with fake_servers(1) as (made,):
        made.say = Says()
        yield made
