"""Tests that a worker has imported what its handlers may need, before the files are replaced."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.test_house import SRC, imports_that_run

FACES = ("queue.py", "request.py", "flows.py", "schedules.py", "taken.py", "aio/queue.py")
ASK = """
import sys
from fairlane.worker.child import import_lazy_modules
import_lazy_modules()
print(*sys.modules)
"""


@pytest.mark.rest
def test_a_worker_imports_what_methods_of_a_queue_import_later():
    done = subprocess.run([sys.executable, "-c", ASK], check=True, capture_output=True, text=True)
    there = set(done.stdout.split())
    needed = {
        name if (SRC.parent / f"{name.replace('.', '/')}.py").exists() else name.rpartition(".")[0]
        for face in (*FACES, "aio/request.py")
        for name in imports_that_run(SRC / face)
        if name.startswith("fairlane.")
    }
    assert "fairlane.operations.why" in needed
    assert needed - there == set()
