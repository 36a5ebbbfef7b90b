"""Runs CPython's own tests of executors on ours, with a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fairlane import App
from tests.support.wait import wait_until
from tests.tasks.cpython import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.program import Program

# What differs by design, with the reason.
DIFFERENT = {
    "ExecutorTest.test_map_exception": "an error is a TaskError, because no class is imported by "
    "the name in a message",
    "ExecutorTest.test_no_stale_references": "a bound method is no task",
}


@pytest.fixture
def run(program: Program, redis_url: str) -> Iterator[Callable[..., dict[str, str]]]:
    """Runs CPython's tests while a worker has their functions as tasks."""
    program.env["PYTHONPATH"] += f"{os.pathsep}{ROOT}"

    def run(*words: str) -> dict[str, str]:
        command = [sys.executable, "-m", "tests.tasks.cpython", *words]
        ended = subprocess.run(
            command, cwd=program.folder, env=program.env, capture_output=True, check=False
        )
        assert ended.returncode == 0, ended.stderr.decode()
        outcomes: dict[str, str] = json.loads(ended.stdout)
        if "" in outcomes:
            pytest.skip(outcomes[""])
        assert outcomes.pop("altered") == "", "a thread or a child outlived its test"
        return outcomes

    worker = program.run("worker", "--app", "tests.tasks.cpython:app", "--concurrency", "8")
    queue = App("cpython", redis_url).queue
    wait_until(lambda: queue.status().workers)
    yield run
    worker.process.send_signal(signal.SIGTERM)
    ended = worker.finish()
    assert ended.code == 0, ended.err


@pytest.mark.rest
@pytest.mark.slow
def test_cpythons_own_tests_of_executors_pass(run: Callable[..., dict[str, str]]):
    outcomes = run()
    assert len(outcomes) > 40
    failed = {name: why for name, why in outcomes.items() if why}
    assert failed.keys() == DIFFERENT.keys(), failed
    assert failed["ExecutorTest.test_map_exception"].startswith("TaskError")


@pytest.mark.rest
@pytest.mark.slow
def test_a_timeout_of_a_map_holds_after_quick_calls(run: Callable[..., dict[str, str]]):
    """Workers that know quick calls must not hold a quick result behind a slow call."""
    assert set(run("quick").values()) == {""}
