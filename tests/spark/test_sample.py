"""Tests the guarantees of the pipeline sample, although a worker of its fleet is killed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane import Reject, Retry
from tests.guide.blocks import GUIDE, README, blocks_of
from tests.spark.processes import skip_without_java

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "spark_pipeline"
CHAPTER = GUIDE / "04-from-a-lake-to-answers.md"
END_S = 900.0
ROWS = 20_000
TABLE = [
    *("rows", "seconds", "killed", "urgent", "retried", "dead", "repaired"),
    *("queue", "rows", "items", "cents", "rows"),
]


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(2 * END_S)
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_the_queue_and_spark_alone_find_the_same(redis_url: str, tmp_path: Path):
    skip_without_java()
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SAMPLE / "pipeline.py"), "--out", str(tmp_path / "out"),
         "--rows", str(ROWS)],
        env=os.environ | {"FAIRLANE_REDIS": redis_url, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=END_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    table = {
        words[0]: words[1:] for line in done.stdout.splitlines() if len(words := line.split()) > 1
    }
    bad = f"{ROWS // 200:,}"
    assert (table["dead"][0], table["repaired"][0], table["killed"][0]) == (bad, bad, "1")
    assert int(table["retried"][0].replace(",", "")) > ROWS // 200
    for name in ("rows", "items", "cents"):
        queue, alone, difference = re.findall(
            rf"^{name} +([\d,]+) +([\d,]+) +(-?[\d,]+)$", done.stdout, re.MULTILINE
        )[0]
        assert (queue, difference) == (alone, "0")
    first = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert first == [*TABLE, "report"]
    assert (tmp_path / "out" / "report" / "report.html").exists()


def test_the_readme_shows_a_run_in_which_nothing_differs():
    (shown,) = (one.text for one in blocks_of(README, languages=("text",)))
    lines = [line.split() for line in shown.splitlines() if line]
    assert [line[0] for line in lines] == TABLE
    assert [line[-1] for line in lines[-4:]] == ["0"] * 4


def handler(file: Path) -> Any:
    """Imports a file under another name; returns its `add_up`."""
    spec = importlib.util.spec_from_file_location(f"orders_of_{file.parent.name}", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.add_up


def test_the_handler_of_the_chapter_does_what_that_of_the_sample_does(tmp_path: Path):
    (written, *_) = (one.text for one in blocks_of(CHAPTER, languages=("bash",)))
    file = tmp_path / "orders.py"
    file.write_text(written.split("<<'END'\n")[1].split("END\n")[0])
    shown, real = handler(file), handler(SAMPLE / "orders.py")
    for body in (b"3x12.50 1x120.00", b"", b"2x7.05"):
        answers = [run(body, SimpleNamespace(attempt=2)) for run in (shown, real)]
        assert answers[0] == answers[1]
    for run in (shown, real):
        with pytest.raises(Reject, match="12,50 is no amount"):
            run(b"3x12,50", SimpleNamespace(attempt=2))
        with pytest.raises(Retry):
            [run(b"1x%d.00" % n, SimpleNamespace(attempt=1)) for n in range(1000)]
