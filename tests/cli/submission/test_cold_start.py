"""Tests what a cold `rq-submit` imports: each module costs CPU in every call from a shell."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.program import Program

MOST = 70
ASK = """
import json, sys
from fairlane.cli import submit_main
try:
    submit_main()
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules)]))
"""


def modules_of(program: Program, **env: str) -> set[str]:
    """Returns the modules that a submission of three lines has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(program.file(b"a\nb\nc\n"))],
        env=program.env | env, capture_output=True, check=True, text=True,
    )  # fmt: skip
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    return set(modules)


@pytest.mark.rest
def test_a_cold_submission_imports_few_modules(program: Program):
    own = {name for name in modules_of(program) if f"{name}.".startswith("fairlane.")}
    assert len(own) <= MOST, sorted(own)


@pytest.mark.rest
@pytest.mark.skipif(not find_spec("opentelemetry"), reason="OpenTelemetry is not installed")
@pytest.mark.parametrize(
    ("env", "is_there"),
    [({}, False), ({"OTEL_SERVICE_NAME": "shop"}, True)],
    ids=["usual", "named"],
)
def test_a_submission_imports_opentelemetry_only_if_the_environment_names_it(
    env: dict[str, str], is_there: bool, program: Program
):
    program.env = {name: value for name, value in program.env.items() if "OTEL_" not in name}
    assert ("opentelemetry" in modules_of(program, **env)) is is_there
