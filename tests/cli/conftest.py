"""Fixtures: the program, on a clean Redis."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on one kind of server, because few tests depend on it; see ON_EVERY_KIND."""
    backends.use_one(metafunc)


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Iterator[Program]:
    """Makes `fairlane` with FAIRLANE_REDIS, in an empty folder."""
    with contextlib.closing(Program(tmp_path, redis_url)) as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    """Makes `fairlane` without a Redis, in an empty folder."""
    return Program(tmp_path, None)
