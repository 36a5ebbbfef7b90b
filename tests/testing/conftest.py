"""Fixture: an app whose queue is on a clean server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane import App
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on one kind of server, because the kind matters little here."""
    if "redis_server" in metafunc.fixturenames:
        metafunc.definition.add_marker(
            pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
        )


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    made = App("images", redis_url)
    yield made
    made.close()
