"""Fixtures: the program, on a clean Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Program:
    """`fairlane` with FAIRLANE_REDIS, in an empty folder."""
    return Program(tmp_path, redis_url)


@pytest.fixture
def alone(tmp_path: Path) -> Program:
    """`fairlane` without a Redis, in an empty folder."""
    return Program(tmp_path, None)
