"""Tests the tests' support: the fixtures' servers, and the check at the end of each test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.run.first_share import modules_in, share_of
from tests.support.run.for_each import for_each
from tests.support.run.teardown import check_world
from tests.support.servers import server_process
from tests.support.wait import wait_until

if TYPE_CHECKING:
    import redis

ROOT = Path(__file__).resolve().parents[2]
KEEPER = """
import sys
from tests.support.servers.server_process import run_server
with run_server() as server:
    print(server.port, flush=True)
    sys.stdin.readline()
"""
UNDER_NOHUP = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from tests import conftest
shown = "from signal import *; print(SIG_IGN in map(getsignal, (SIGINT, SIGHUP)))"
signal.raise_signal(signal.SIGHUP)
subprocess.run([sys.executable, "-c", shown], check=True)
"""


def test_a_server_of_each_kind(redis_server: server_process.Server, redis_client: redis.Redis):
    assert redis_client.dbsize() == 0
    info = redis_client.info()
    assert info["process_id"] == redis_server.pid
    assert bool(info["cluster_enabled"]) == (redis_server.kind == "cluster1")
    for name in ("a", "b", "c"):  # three hash slots, one node
        redis_client.set(name, name, ex=60)
        assert redis_client.get(name) == name.encode()


@pytest.mark.rest
def test_children_of_a_run_under_nohup_do_not_ignore_signals():
    words = [sys.executable, "-c", UNDER_NOHUP]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@for_each("turn", [1, 2])
def test_the_database_is_empty(turn: int, redis_client: redis.Redis):
    assert redis_client.dbsize() == 0
    redis_client.set(f"turn:{turn}", "left", ex=60)


@pytest.mark.rest
@pytest.mark.server
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_server_dies_with_a_killed_test_run(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", KEEPER],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as keeper:
        assert keeper.stdout
        port = int(keeper.stdout.readline())
        assert server_process.is_open(port)
        keeper.kill()
    wait_until(lambda: not server_process.is_open(port), why="the server has ended")


def test_the_world_check_passes_what_may_stay(redis_client: redis.Redis):
    redis_client.hset("{req}:conf", "layout", "v1")
    redis_client.lpush("{req}:99", "token")
    redis_client.hset("req:{live}", "state", "active")
    redis_client.set("counter:{live}", 1)
    redis_client.hset("req:{ended}", "state", "done")
    redis_client.expire("req:{ended}", 60)
    check_world(redis_client)


@for_each(
    "key, state",
    [("stray", None), ("{req}:100", None), ("counter:{gone}", None), ("sub:{ended}", "done")],
)
def test_the_world_check_finds_keys_left(key: str, state: str | None, redis_client: redis.Redis):
    if state:
        redis_client.hset("req:{ended}", "state", state)
        redis_client.expire("req:{ended}", 60)
    redis_client.set(key, "left")
    with pytest.raises(AssertionError, match="without a TTL"):
        check_world(redis_client)
    redis_client.delete(key)


def test_the_processes_of_a_run_import_each_module_once_between_them():
    modules = modules_in([str(ROOT / "tests")])
    names = [
        {"PYTEST_XDIST_WORKER": f"gw{at}", "PYTEST_XDIST_WORKER_COUNT": "3"} for at in range(3)
    ]
    shares = [share_of(modules, env) for env in names]
    assert sorted(path for share in shares for path in share) == modules
    assert share_of(modules, {}) == []


def test_an_ignored_folder_is_not_imported():
    folder = ROOT / "tests"
    left = modules_in([str(folder)], [str(folder / "spark")])
    assert {path.relative_to(folder).parts[0] for path in left} >= {"cli", "test_house.py"}
    assert not [path for path in left if path.is_relative_to(folder / "spark")]
