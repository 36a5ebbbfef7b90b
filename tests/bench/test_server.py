"""Tests the choice of the server that is measured, and peers that need a newer one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench.harness import envs, registry, support

from fairlane.embedded.server import ServerBinary, find_server

ROOT = Path(__file__).resolve().parents[2]


def test_a_measurement_refuses_a_port_that_another_server_has(
    monkeypatch: pytest.MonkeyPatch, redis_url: str
):
    monkeypatch.setattr(support, "pin", lambda *_: None)
    monkeypatch.setattr(support, "PORT", int(redis_url.rsplit(":", 1)[1].partition("/")[0]))
    with pytest.raises(support.UnfitServer, match="in use by another server"), support.server():
        pytest.fail("a measurement would empty another server")


def test_the_named_server_program_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(support.SERVER, str(find_server().path))
    assert support.program() == find_server()


def test_a_program_that_is_no_server_is_refused():
    command = [sys.executable, "-m", "bench", "--server", sys.executable]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2
    assert f"{sys.executable} is no server of Redis 7.0, Valkey 7.2 or newer" in done.stderr


@pytest.mark.parametrize("server", [("redis", (8, 4, 0)), ("valkey", (9, 1, 2))])
def test_a_peer_that_needs_a_newer_redis_is_missing_with_the_reason(
    server: tuple[str, tuple[int, int, int]],
):
    binary = ServerBinary(Path("server"), server[1], server[0])
    with pytest.raises(envs.Missing, match=r"needs Redis 8\.6 or newer, and the server is"):
        envs.prepare(registry.PEERS["chasquimq"], binary)
