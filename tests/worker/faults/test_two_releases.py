"""Tests an upgrade under work: workers of two releases, and one whose files are gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fairlane
from fairlane.protocol import keys
from fairlane.protocol.lua import Dialect, Library, library, lua_folder
from tests.support.processes.workers import has_own_traceback
from tests.support.servers.server_process import free_ports
from tests.support.wait import PATIENCE_S, wait_until
from tests.worker.parts import ON_ONE_SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.queue import Queue
    from tests.support.processes.workers import Workers

pytestmark = pytest.mark.rest  # each has a shorter test of its subject, or is tested as a part


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Makes a release with other script texts, and so other names on the server."""
    package = tmp_path / "fairlane"
    shutil.copytree(Path(fairlane.__file__).parent, package)
    if not (package / "lua").exists():
        shutil.copytree(lua_folder(), package / "lua")
    for path in (package / "lua").rglob("*.lua"):
        path.write_text(path.read_text() + "-- of the next release\n")
    return tmp_path


@contextlib.contextmanager
def run_worker(
    other: Path, redis_url: str, handler: str, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker of that release, which drains at the end; it logs to the file `log`."""
    (port,) = free_ports(1)
    with (other / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "fairlane", "worker", "--redis", redis_url, *words),
                *("--id", f"127.0.0.1:{port}", "--handler", f"handlers:{handler}"),
            ],
            cwd=other,
            env=os.environ | {"PYTHONPATH": str(other)},
            stderr=log,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, (other / "log").read_text()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def newer(other: Path, redis_url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker of that release."""
    (other / "handlers.py").write_text("def answer(body):\n    return b'newer'\n")
    with run_worker(other, redis_url, "answer", "--slice", "0") as process:
        yield process


@pytest.mark.any_command
def test_workers_of_two_releases_share_a_request(
    queue: Queue,
    workers: Workers,
    newer: subprocess.Popen[bytes],
    other: Path,
    redis_client: redis.Redis,
):
    """Each takes what the other released, by scripts of its own."""
    theirs = Library(other / "fairlane" / "lua" / "v1")
    assert theirs["complete"].shas[Dialect.SINGLE] != library()["complete"].shas[Dialect.SINGLE]
    workers.start("echo", slice_s=0)
    count = 0

    def are_both_at_work() -> bool:
        nonlocal count
        count += 1
        request = queue.submit_request([b"x"] * 200, limit=2)
        assert request.wait(timeout=PATIENCE_S) == "done"
        answers = {result.body for result in request.results()}
        assert answers <= {b"x", b"newer"}
        return len(answers) == 2

    wait_until(are_both_at_work, why="a request is answered by both")
    wait_until(lambda: redis_client.xlen(keys.completed("req")) == count, why="each end is logged")
    assert newer.poll() is None


HANDLERS = """
import os, signal

def act(body, context):
    if context.attempt > 1:
        return body
    if body == b"fail":
        raise ValueError("not yet")
    if body == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    while body == b"hang":
        pass
    before = context.deadline
    while body == b"extend" and context.deadline == before:
        pass
    return body

async def act_async(body, context):
    return act(body, context)
"""
# Runs in the worker before anything else: records each import and each script that is read.
RECORDER = """
import os, sys

def note(event, args):
    name = str(args[0]) if args else ""
    if (event == "import" and name.partition(".")[0] in {"fairlane", "redis", "hiredis"}) or (
        event == "open" and name.endswith(".lua")
    ):
        file = os.open(RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, name.encode() + b"\\n")
        os.close(file)

RECORD = os.path.join(os.path.dirname(__file__), "record")
sys.addaudithook(note)
"""


@ON_ONE_SERVER  # a user without the right to load scripts would refuse that release
@pytest.mark.parametrize("handler", ["act", "act_async"])
def test_a_worker_reads_none_of_its_files_once_it_works(
    handler: str, queue: Queue, redis_url: str, other: Path
):
    """So an upgrade or a removal under a running worker changes nothing for it."""
    (other / "handlers.py").write_text(HANDLERS)
    (other / "sitecustomize.py").write_text(RECORDER)
    with run_worker(other, redis_url, handler, "--time-limit", "3s") as process:
        assert queue.submit_request([b"x"]).wait(timeout=PATIENCE_S) == "done"
        loaded = (other / "record").read_text()
        assert "reap.lua" in loaded
        shutil.rmtree(other / "fairlane")
        bodies = [b"fail", b"die", b"hang", b"extend"]
        request = queue.submit_request(bodies, lease=1.5, backoff=(0.01, 0.02))
        assert request.wait(timeout=PATIENCE_S) == "done"
        assert [result.body for result in request.results()] == bodies
        assert process.poll() is None
    assert (other / "record").read_text() == loaded
    assert not has_own_traceback((other / "log").read_text())
