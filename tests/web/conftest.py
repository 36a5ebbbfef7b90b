"""Fixtures: `fairlane serve` as a process, and curl."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program
from tests.support.servers import backends
from tests.web.serving import Serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on one kind of server, because HTTP does not depend on it."""
    backends.use_one(metafunc)


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Iterator[Program]:
    """Makes `fairlane` with FAIRLANE_REDIS, in an empty folder."""
    with contextlib.closing(Program(tmp_path, redis_url)) as made:
        yield made


@pytest.fixture
def serving(program: Program) -> Iterator[Serving]:
    """Runs a server without tokens."""
    with Serving(program) as running:
        yield running
