"""Tests that the core and its tests need neither the extra `web` nor the extra `spark`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

import pytest

from tests.support.run.extras import NEEDED_BY, PACKAGES, TESTS

if TYPE_CHECKING:
    from pathlib import Path

ROOT = TESTS.parent
# Every Python that is started with this file in a folder of PYTHONPATH lacks the packages.
REFUSE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""
# One test of each kind of program: in the process, forked, started anew, with workers.
RUN = (
    "tests/cli/commands/test_status.py",
    "tests/operations/control/test_completion.py",
    "tests/scripts/lease/test_acquire.py",
    "tests/tasks/test_chain.py",
    "tests/worker/process/test_endings.py",
)


def packages_of(*extras: str) -> set[str]:
    """Returns the packages that a Python imports of the distributions of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        re.split(r"[\[><=;, ]", line, maxsplit=1)[0].lower()
        for extra in extras
        for line in project["optional-dependencies"][extra]
    }
    return {
        package
        for package, owners in packages_distributions().items()
        if wanted & {owner.lower() for owner in owners}
    }


def without_extras(folder: Path) -> dict[str, str]:
    """Returns an environment in which no Python imports a package of `web` or `spark`."""
    packages = packages_of("web", "spark")
    assert packages >= {*PACKAGES.values(), "pandas", "uvicorn"}
    (folder / "sitecustomize.py").write_text(REFUSE.format(packages=packages))
    mine = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    return mine | {"PYTHONPATH": str(folder)}


def pytest_in(folder: Path, *words: str) -> str:
    """Runs pytest without the extras; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=ROOT, env=without_extras(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.rest
def test_all_but_the_tests_of_the_extras_are_collected_without_them(tmp_path: Path):
    said = pytest_in(tmp_path, "--collect-only", "-m", "not heavy")
    assert all(f"without the extra {extra}" in said for extra in NEEDED_BY)
    assert len(re.findall(r"^tests/(?:scripts|operations|worker)/", said, re.MULTILINE)) > 3_000
    assert not re.search(r"^tests/(?:web|spark)/", said, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.server
def test_tests_of_the_core_pass_without_the_extras(tmp_path: Path):
    said = pytest_in(tmp_path, *RUN, "-m", "not rest and not heavy")
    assert int(re.findall(r"(\d+) passed", said)[-1]) > 30


def test_every_place_that_needs_an_extra_is_there():
    """Else its tests would be collected where they cannot run."""
    places = [name for names in NEEDED_BY.values() for name in names]
    assert [name for name in places if not (TESTS / name).exists()] == []
