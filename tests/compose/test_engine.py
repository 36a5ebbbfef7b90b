"""Tests the program without an engine, which runs nothing; and the image that is made here."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from fairlane.embedded import find_server
from tests.compose import __main__ as program
from tests.compose import engine, image

if TYPE_CHECKING:
    from pathlib import Path

NOWHERE = "unix:///nowhere/engine.sock"


def test_without_root_and_an_engine_the_program_prints_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("DOCKER_HOST", NOWHERE)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["compose"])
    assert program.main() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("skipped: no container engine answers, and only root can start one")


@pytest.mark.parametrize(
    ("user", "why"), [(1000, "only root can install it"), (0, "there is no apt to install it with")]
)
def test_what_is_missing_and_cannot_be_installed_is_named(
    user: int, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(engine.NoEngine, match=f"dockerd and docker-compose not found, and {why}"):
        engine._install(["dockerd", "docker-compose"], print)


def test_an_engine_that_does_not_start_is_an_error_with_its_log(tmp_path: Path):
    log = tmp_path / "engine.log"
    broken = tmp_path / "dockerd"
    broken.write_text("#!/bin/sh\necho 'no room here' $*\nexit 3\n")
    broken.chmod(0o755)
    env = {**os.environ, "DOCKER_HOST": NOWHERE}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(engine.NoEngine, match="no room here"):
            engine._start(engine.Engine(env, print), tmp_path)
    first, second = log.read_text().splitlines()
    assert "vfs" not in first
    assert second.endswith("--storage-driver vfs")


@pytest.mark.skipif(
    sys.platform != "linux", reason="an image is made of a Linux machine's programs"
)
def test_the_image_made_here_has_all_that_its_programs_need(tmp_path: Path):
    server = find_server()
    programs = {"/usr/bin/server": server.path, "/bin/sh": image.find_program("sh")}
    count = image._pack(programs, tmp_path / "root.tar")
    with tarfile.open(tmp_path / "root.tar") as tar:
        assert len(tar.getnames()) == count + 2  # /data and /tmp
    if os.geteuid() != 0:
        pytest.skip("only root can look at it from inside")
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-xf", f"{root}.tar", "-C", str(root)], check=True)
    words = ["chroot", str(root), "/bin/sh", "-c", "/usr/bin/server --version"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert ".".join(map(str, server.version)) in said
