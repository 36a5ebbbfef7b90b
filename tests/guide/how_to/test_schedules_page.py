"""Tests the page on schedules: its blocks run in order, and print what the page shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "use" / "schedules.md"


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        _, _, app, commands, program = (shells.run(block) for block in blocks_of(PAGE))
    rows = [line.split() for line in app.splitlines()]
    assert ["SCHEDULE", "STATE", "CRON", "TZ", "MISSED", "NEXT"] in rows
    assert re.search(r"^daily +active +0 7 \* \* mon-fri +Europe/Berlin +one +", app, re.MULTILINE)
    assert re.search(r"^reports:pulse:\d{8}T\d{6}Z +done", app, re.MULTILINE)
    assert [line.split()[0] for line in commands.splitlines()] == [
        *("next", "next", "paused", "next", "removed"),
    ]
    assert re.search(r"^weekly active \d{4}-\d\d-\d\d 09:00:00\+", program, re.MULTILINE)
