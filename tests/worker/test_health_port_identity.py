"""Tests the identity of a worker's host: equal only for workers that share a loopback interface."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import settings
from fairlane.operations.workers import Late
from fairlane.protocol import keys
from fairlane.queue import Queue
from fairlane.worker import health_port as module
from fairlane.worker.health_port import (
    address_towards,
    full_id,
    hostname_of,
    is_loopback,
    whereabouts,
)
from fairlane.worker.leader import refuses
from tests.support.processes.prepared import ROOT
from tests.support.processes.workers import FOLDER, Folder
from tests.support.run.for_each import for_each
from tests.support.servers.server_process import run_server
from tests.support.wait import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from pathlib import Path

AGE_MS = 3 * settings.LATE_MS + settings.LOCK_MS
HERE = "from fairlane.worker.health_port import whereabouts; print(whereabouts())"


HANDLER = """
from tests.support.processes.workers import Folder

def act(body, context):
    Folder.of_handler().note("began", context.attempt)
    Folder.of_handler().pass_gate()
    return body
"""


def unshared() -> list[str]:
    """Returns the words that begin a program in a network namespace of its own."""
    unshare = shutil.which("unshare")
    words = [unshare or "", "--net"]
    if not unshare or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("this user may not make a network namespace")
    return words


def program(*before: str) -> str:
    """Returns what another process on this machine finds."""
    words = [*before, sys.executable, "-c", HERE]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.rstrip("\n")


@pytest.mark.rest
def test_two_processes_of_one_machine_are_at_one_place():
    """The identity begins with the hostname, which people read."""
    assert program() == whereabouts()
    assert hostname_of(whereabouts()) == socket.gethostname()


@pytest.mark.rest
def test_a_process_in_another_network_namespace_is_elsewhere():
    """A container is such a case; its hostname is the same."""
    found = program(*unshared())
    assert hostname_of(found) == hostname_of(whereabouts())
    assert found != whereabouts()


def test_another_boot_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another machine may have the same hostname and the same number of a namespace."""
    before = whereabouts()
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(module, "_BOOT_ID", tmp_path / "boot_id")
    assert whereabouts() != before
    assert whereabouts().split(" ")[::2] == before.split(" ")[::2]


def test_an_unknown_place_is_equal_to_that_of_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is equal to itself: a worker may register twice."""
    before = whereabouts()
    monkeypatch.setattr(module, "_BOOT_ID", tmp_path / "none")
    assert whereabouts() == whereabouts()
    assert whereabouts() != before


def test_elsewhere_than_on_linux_it_is_the_hostname(monkeypatch: pytest.MonkeyPatch):
    """There are no network namespaces there."""
    monkeypatch.setattr(sys, "platform", "darwin")
    assert whereabouts() == socket.gethostname()


@for_each(
    "worker, expected",
    [("127.0.0.1:1", True), ("::1:1", True), ("0.0.0.0:1", True), ("10.0.0.9:1", False)],
)
def test_an_address_is_a_loopback_or_not(worker: str, *, expected: bool):
    """The unspecified address leads to a loopback, too."""
    assert is_loopback(worker) is expected


def test_a_hostname_that_is_a_loopback_proves_nothing_either(monkeypatch: pytest.MonkeyPatch):
    """Many systems give their own name to 127.0.1.1, and containers may have equal names."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest: resolve("127.0.1.1", *rest))
    assert refuses(Late("box:1", "7", "another-machine")) is False
    assert refuses(Late("box:1", "7", whereabouts())) is True


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.server
def test_a_late_beat_from_another_network_is_no_death(tmp_path: Path):
    """Its only attempt is not charged, and it continues when it is no longer stopped."""
    (tmp_path / "gated.py").write_text(HANDLER)
    folder, before = Folder(tmp_path), unshared()
    with contextlib.ExitStack() as stack:
        client: Any = stack.enter_context(run_server()).client()
        url = f"unix://{client.config_get('unixsocket')['unixsocket']}"
        queue = stack.enter_context(Queue.from_url(url))

        def start(*words: str) -> subprocess.Popen[bytes]:
            words = (*words, sys.executable, "-m", "fairlane", "worker", "--redis", url)
            given = os.environ | {FOLDER: str(tmp_path), "PYTHONPATH": str(ROOT)}
            made = subprocess.Popen([*words, "--handler", "gated:act"], cwd=tmp_path, env=given)
            stack.callback(made.wait)
            stack.callback(made.kill)
            return made

        request = queue.submit_request([b"x"], attempts=1)
        stopped = start(*before)
        folder.wait_noted("began")
        (name,) = queue.status().workers
        stopped.send_signal(signal.SIGSTOP)
        start()
        beats = keys.workers(queue.name)

        def has_looked() -> bool:
            """Returns whether another worker has led for long enough to detect a death."""
            beat = client.zscore(beats, name)
            assert beat is not None, "it was taken for dead"
            newest: Any = client.zrange(beats, -1, -1, withscores=True)
            leader = client.hget(keys.conf(queue.name), "lock")
            return leader != name.encode() and bool(newest[0][1] - beat > AGE_MS)

        wait_until(has_looked, why="the beat is late, and another worker leads")
        assert client.zcard(keys.leases(request.id)) == 1
        stopped.send_signal(signal.SIGCONT)
        folder.open_gate()
        assert request.wait(timeout=PATIENCE_S) == "done"
        assert [(one.status, one.attempt) for one in request.results()] == [("done", 1)]
        assert folder.noted("began") == [["1"]]


@for_each(
    "url",
    [
        *("redis://127.0.0.1:7000/0", "redis+cluster://127.0.0.1:7000,127.0.0.1:7001"),
        *("unix:///tmp/redis.sock", "redis://no.such.host.invalid:1"),
    ],
)
def test_the_address_is_the_one_that_redis_sees(url: str):
    assert address_towards(url) == "127.0.0.1"


@for_each(
    "worker, expected",
    [
        (None, "127.0.0.1:0"),
        (":7101", "127.0.0.1:7101"),
        ("10.0.0.1:7101", "10.0.0.1:7101"),
        ("::1", "::1"),
        (":x", ":x"),
    ],
)
def test_an_id_without_a_host_gets_this_machines_address(worker: str | None, expected: str):
    assert full_id(worker, "redis://127.0.0.1:1") == expected
