"""Tests the pytest plugin: the sample project passes, and a wrong setting is one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "testing"
# The plugins that come with packages of our own tests; each takes seconds to import.
_SETTINGS = tomllib.loads((SAMPLE.parents[1] / "pyproject.toml").read_text())["tool"]["pytest"]
OTHERS = re.findall(r"-p|no:\w+", _SETTINGS["ini_options"]["addopts"])
TEST = "def test_it(fairlane_app):\n    pass\n"


def run_pytest(folder: Path, *words: str) -> tuple[int, str]:
    """Runs pytest in a folder as its author does; returns the exit code and the output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env.pop("FAIRLANE_REDIS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *OTHERS, *words],
        cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.rest
@pytest.mark.slow
def test_the_sample_project_passes():
    code, said = run_pytest(SAMPLE)
    assert code == 0, said
    assert "5 passed" in said


@pytest.mark.rest
@pytest.mark.slow
def test_a_missing_or_wrong_setting_is_one_sentence(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text(TEST)
    for setting, why in [
        ("", 'name your app in the setting fairlane_app, as fairlane_app = ["images:app"]'),
        (
            "fairlane_app = nowhere:app",
            "setting fairlane_app: app 'nowhere:app' cannot be imported",
        ),
    ]:
        (tmp_path / "pytest.ini").write_text(f"[pytest]\n{setting}\n")
        code, said = run_pytest(tmp_path)
        assert code == 1, said
        assert why in said
        assert "Traceback" not in said


@pytest.mark.rest
@pytest.mark.slow
def test_a_test_without_the_fixture_does_not_write_to_the_users_own_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Unless it is marked so."""
    home = tmp_path / "home"
    monkeypatch.setenv("FAIRLANE_HOME", str(home))
    (tmp_path / "pytest.ini").write_text("[pytest]\nfairlane_app = mine:app\npythonpath = .\n")
    (tmp_path / "mine.py").write_text(
        'from fairlane import App\n\napp = App("mine")\n\n\n@app.task\ndef one() -> int:\n'
        "    return 1\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "import pytest\nimport fairlane.embedded\nfrom mine import one\n\n\n"
        "def test_forgets():\n    one.submit()\n\n\n"
        "def test_has_it(fairlane_app):\n    one.submit()\n\n\n"
        "@pytest.mark.fairlane_embedded\ndef test_asks():\n"
        '    assert fairlane.embedded.ensure.__module__ == "fairlane.embedded.server"\n'
    )
    code, said = run_pytest(tmp_path)
    assert code == 1, said
    assert "this test would use your own embedded server: give it the fixture fairlane_app" in said
    assert "1 failed, 2 passed" in said
    assert not home.exists()
