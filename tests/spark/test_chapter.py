"""Tests the guide's fourth chapter: its Python is one program, and prints what the page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import GUIDE, ROOT, blocks_of, environment
from tests.spark.processes import skip_without_java

if TYPE_CHECKING:
    from pathlib import Path

PAGE = GUIDE / "04-from-a-lake-to-answers.md"
END_S = 500.0


@pytest.mark.spark
@pytest.mark.rest
@pytest.mark.timeout(2 * END_S)
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_the_chapter_runs(redis_url: str, tmp_path: Path):
    skip_without_java()
    handler, report = (one.text for one in blocks_of(PAGE, languages=("bash",)))
    program = "\n".join(one.text for one in blocks_of(PAGE, languages=("python",)))
    python_path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    env = environment(redis_url) | {"PYTHONPATH": python_path}

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=END_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        return done.stdout

    run("bash", "-euc", handler)
    printed = run(sys.executable, "-c", program)
    run("bash", "-euc", report)
    urgent, *_, kept = printed.strip().splitlines()
    assert urgent == """[b'{"items": 1, "cents": 9900}']"""
    shown, answer = (one.text for one in blocks_of(PAGE, languages=("text",)) if one.text[0] == "+")
    for part in (*shown.strip().split("\n\n"), answer.strip()):
        assert part in printed
    assert kept == "5 requests, 610 results"
    assert (tmp_path / "report" / "report.html").exists()
