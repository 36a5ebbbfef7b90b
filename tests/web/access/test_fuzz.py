"""Fuzzes every call of /openapi.json with Schemathesis, with good and with bad input.

FAIRLANE_FUZZ_EXAMPLES is how many inputs each call gets: 3, or many for a long run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.web.serving import Serving

if TYPE_CHECKING:
    from tests.cli.program import Program

EXAMPLES = int(os.environ.get("FAIRLANE_FUZZ_EXAMPLES", "3"))
SEED = 1
# They wait, or have no end. tests/web/api/test_v1.py calls them.
WAITING = (
    *("/v1/completions", "/v1/live", "/v1/take"),
    *("/v1/requests/{id}/live", "/v1/requests/{id}/results"),
)
# A schema has no rules for what a name, a rate or a cron line is: 422 is right for a wrong one.
NOT_CHECKED = "positive_data_acceptance"


@pytest.mark.slow
@pytest.mark.rest
@pytest.mark.timeout(900)
def test_no_call_breaks_the_description(program: Program):
    token = program("token", "create", "fuzz", "--scope", "admin").id
    excluded = [word for path in WAITING for word in ("--exclude-path", path)]
    with Serving(program) as serving:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{serving.url}/openapi.json"),
                *("--max-examples", str(EXAMPLES), "--seed", str(SEED), "--no-color"),
                *("--exclude-checks", NOT_CHECKED, "--request-timeout", "30", *excluded),
                *("--generation-database", "none", "--workers", "2"),
                *("-H", f"Authorization: Bearer {token}"),
            ],
            cwd=program.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr
