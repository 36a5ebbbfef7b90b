"""Tests the page on topics: its blocks run in order, and print what the page shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "use" / "topics.md"


@pytest.mark.slow
@pytest.mark.rest
@ON_ONE_KIND
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        program, awaited, commands, retain = (shells.run(block) for block in blocks_of(PAGE))
    orders = [f"{number} order {number} is paid" for number in range(1, 6)]
    assert program.splitlines() == ["1", *orders[:4], "billing 0", "mail 2"]
    assert awaited.splitlines() == orders[2:]
    lines = commands.splitlines()
    assert lines[:5] == ["subscribed", "2", "subscribed", "disk is full", "fan is slow"]
    assert lines[5] == "topic alerts: 2 messages, 2 published; keeps 1,000,000 for 7d"
    assert re.match(r"audit +2 +2 +0 +0 +\d+ ?m?s +never", lines[7])
    assert re.match(r"pager +0 +0 +0 +0 +- +\d+ ?m?s ago", lines[8])
    done, count, *found = retain.splitlines()
    assert (done, count) == ("set", "5")
    assert re.match(r"warn +topics +topic alerts, subscriber audit +has missed 3", found[0])
    assert "fairlane topic unsubscribe alerts audit" in "".join(found)
