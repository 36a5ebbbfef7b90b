"""Tests the guarantees of the pipeline sample, also if a worker of its fleet is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.processes import skip_without_java

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples" / "spark_pipeline"
END_S = 600.0


def run(url: str, out: Path, *words: str) -> str:
    """Returns what the sample printed; it must end well."""
    skip_without_java()
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SAMPLE / "pipeline.py"), "--out", str(out), *words],
        env=os.environ | {"FAIRLANE_REDIS": url, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=END_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(2 * END_S)
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_the_queue_and_spark_alone_find_the_same(redis_url: str, tmp_path: Path):
    said = run(redis_url, tmp_path, "--files", "150")
    assert "equal " in said
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(2 * END_S)
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_a_killed_executor_changes_no_total(redis_url: str, tmp_path: Path):
    said = run(redis_url, tmp_path, "--log-lines", "0.3", "--files", "50", "--kill")
    assert "kill -9 of" in said
    assert "equal " in said


def test_both_handlers_answer_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(SAMPLE))
    import pyarrow as pa
    from counting import count, count_table  # type: ignore[import-not-found]

    bodies = [
        b"",
        b"def f(x):\n    return x if x else None\n",
        b"\xe9def def2 _def def-def ERROR\xff\n\n",
        b"import import\r\nlambda:0 timeout",
    ]
    table = pa.table({"body": pa.array(bodies, pa.binary())})
    assert count_table(table).to_pylist() == [count(body) for body in bodies]
