"""Tests docs/how-to/connect/spark.md: runs its Python in one program, then its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fairlane.spark.sink.plan import MODES, OPTIONS
from fairlane.spark.source.columns import COLUMNS
from tests.guide.blocks import ROOT, blocks_of, environment
from tests.spark.processes import skip_without_java

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "connect" / "spark.md"
END_S = 500.0
ON_ONE_KIND = pytest.mark.parametrize("redis_server", ["single"], indirect=True)


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(3 * END_S)
@ON_ONE_KIND
@pytest.mark.parametrize("language", ["python", "bash"])
def test_the_page_runs(language: str, redis_url: str, tmp_path: Path):
    skip_without_java()
    text = "\n".join(block.text for block in blocks_of(PAGE) if block.language == language)
    words = [sys.executable, "-c", text] if language == "python" else ["bash", "-euc", text]
    python_path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = environment(redis_url) | {"PYTHONPATH": python_path}
    log = tmp_path / "log"
    with log.open("wb") as out:
        done = subprocess.run(
            words, cwd=tmp_path, env=env, stdout=out, stderr=out, timeout=END_S, check=False
        )
    assert done.returncode == 0, log.read_text()[-4000:]


def test_the_page_names_every_option_mode_and_view():
    text = PAGE.read_text()
    assert [one for one in (*OPTIONS, *MODES, *COLUMNS) if f"`{one}`" not in text] == []
