"""An upgrade in the middle of the work: workers of two releases, at once, on one queue."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fairlane
from fairlane import keys
from fairlane.scripts import Dialect, Library, library, lua_folder
from tests.support.servers import free_ports
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.queue import Queue
    from tests.support.workers import Workers


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The folder of a release whose scripts have other texts, and so other names on the server."""
    package = tmp_path / "fairlane"
    shutil.copytree(Path(fairlane.__file__).parent, package)
    if not (package / "lua").exists():
        shutil.copytree(lua_folder(), package / "lua")
    for path in (package / "lua").rglob("*.lua"):
        path.write_text(path.read_text() + "-- of the next release\n")
    return tmp_path


@pytest.fixture
def newer(other: Path, redis_url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of that release."""
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "fairlane", "worker", "--redis", redis_url),
            *("--id", f"127.0.0.1:{port}", "--handler", "handlers:answer", "--slice", "0"),
        ],
        cwd=other,
        env=os.environ | {"PYTHONPATH": str(other)},
        stderr=subprocess.PIPE,
    )
    (other / "handlers.py").write_text("def answer(body):\n    return b'newer'\n")
    yield process
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told.decode()


@pytest.mark.any_command
def test_workers_of_two_releases_share_a_request(
    queue: Queue,
    workers: Workers,
    newer: subprocess.Popen[bytes],
    other: Path,
    redis_client: redis.Redis,
):
    """Each takes what the other gave back, by scripts of its own."""
    theirs = Library(other / "fairlane" / "lua" / "v1")
    assert theirs.complete.sha(Dialect.MODERN) != library().complete.sha(Dialect.MODERN)
    workers.start("echo", slice_ms=0)
    count = 0

    def are_both_at_work() -> bool:
        nonlocal count
        count += 1
        request = queue.submit_request([b"x"] * 200, limit=2)
        assert request.wait(timeout=20) == "done"
        answers = {result.body for result in request.results()}
        assert answers <= {b"x", b"newer"}
        return len(answers) == 2

    wait_until(are_both_at_work, why="a request is answered by both", timeout=30)
    wait_until(lambda: redis_client.xlen(keys.completed("req")) == count, why="each end is logged")
    assert newer.poll() is None
