"""The server that the measurements run on, and the peers that cannot run on it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.embedded.find_server import ServerBinary, find_server

if TYPE_CHECKING:
    from types import ModuleType

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the benchmarks, which import each other by their bare names."""
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(BENCH):
            del sys.modules[name]


def test_a_measurement_refuses_a_port_that_another_server_has(
    bench: Any, monkeypatch: pytest.MonkeyPatch, redis_url: str
):
    support = bench("support")
    monkeypatch.setattr(support, "pin", lambda *_: None)
    monkeypatch.setattr(support, "PORT", int(redis_url.rsplit(":", 1)[1].partition("/")[0]))
    with pytest.raises(support.UnfitServer, match="in use by another server"), support.server():
        pytest.fail("a measurement would empty another server")


def test_the_named_server_program_is_measured(bench: Any, monkeypatch: pytest.MonkeyPatch):
    support = bench("support")
    monkeypatch.setenv(support.SERVER, str(find_server().path))
    assert support.program() == find_server()


def test_a_program_that_is_no_server_is_refused():
    command = [sys.executable, str(BENCH / "bench.py"), "--server", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"{sys.executable} is no server of Redis 7.0, Valkey 7.2 or newer" in done.stderr


@pytest.mark.parametrize("server", [("redis", (8, 4, 0)), ("valkey", (9, 1, 2))])
def test_a_peer_that_needs_a_newer_redis_is_missing_with_the_reason(
    bench: Any, server: tuple[str, tuple[int, int, int]]
):
    envs, registry = bench("envs"), bench("registry")
    binary = ServerBinary(Path("server"), server[1], server[0])
    with pytest.raises(envs.Missing, match=r"needs Redis 8\.6 or newer, and the server is"):
        envs.prepare(registry.PEERS["chasquimq"], binary)
