"""Runs promtool, which comes with Prometheus (Debian: apt-get install prometheus)."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


def promtool(*words: object, given: str = "", folder: Path | None = None) -> str:
    """Returns what promtool printed; it must find nothing wrong. Skips the test without it."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: it comes with the package prometheus")
    done = subprocess.run(
        [program, *map(str, words)], cwd=folder, input=given, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
