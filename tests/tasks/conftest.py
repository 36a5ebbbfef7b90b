"""Fixtures: an app on a clean server, and a worker for its requests."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest

from fairlane import App
from fairlane.tasks.serve import workers_of
from tests.cli.program import Program
from tests.support.servers import backends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test on one kind of server, because the kind matters little to tasks."""
    if "redis_server" in metafunc.fixturenames:
        metafunc.definition.add_marker(
            pytest.mark.parametrize("redis_server", backends.one(), indirect=True)
        )


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    made = App("images", redis_url)
    yield made
    made.close()


@pytest.fixture
def work(app: App) -> Callable[[], int]:
    """Runs a worker of the app until its queue is idle."""
    return lambda: workers_of([app])[0].run(until_idle=True)


@pytest.fixture
def program(redis_url: str, tmp_path: Path) -> Iterator[Program]:
    """Makes `fairlane` with FAIRLANE_REDIS, in an empty folder."""
    with contextlib.closing(Program(tmp_path, redis_url)) as made:
        yield made


@pytest.fixture
def worker_log() -> Iterator[list[str]]:
    """Returns what the workers of this process log."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("fairlane.worker")
    log.addHandler(handler)
    yield lines
    log.removeHandler(handler)
