"""Tests the page on flows: its blocks run in order, and print what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "use" / "flows.md"


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        shown = [shells.run(block) for block in blocks_of(PAGE)]
    assert shown[1].splitlines() == ["active"]
    state, *counts_and_results = shown[3].splitlines()
    assert state == "monday done"
    assert counts_and_results[:2] == ["check 2 done 1 dead", "notify 2 done 0 dead"]
    assert sorted(counts_and_results[2:]) == [
        f"mailed: user {number} has access" for number in (1, 2)
    ]
    listed, drawn = shown[4].splitlines()[:2], shown[4].splitlines()[2:]
    assert listed[1].split() == ["monday", "access", "done,", "1", "dead", "2", "4", "1"]
    page = PAGE.read_text(encoding="utf-8")
    assert all(line in page for line in drawn), drawn
    assert len(drawn) == 4
    state, *shown_last = shown[6].splitlines()
    assert state == "done"
    results, drawn = shown_last[:2], shown_last[2:]
    assert sorted(results) == [
        *("user 1 has a role, user 1 is followed", "user 2 has a role, None"),
    ]
    assert all(line in page for line in drawn), drawn
    assert len(drawn) == 9
    assert "<svg" in (tmp_path / "wednesday.svg").read_text()
    shown = _check_choices(shown, page)
    first, second = shown[7].splitlines()
    assert first == "{'id': 1985} none"
    assert second == "8 True {'checked': 2, 'guild': {'id': 62}, 'rewards': 8}"
    assert "undone: user 3" in shown[9].splitlines()
    assert "6 ['text of tuesday', 2]" in shown[10].splitlines()
    assert "words: [3, 'monday'] two: [2, 'bc']" in shown[11].splitlines()
    assert shown[12].splitlines() == ["done", "user 1 checked mailed"]


def _check_choices(shown: list[str], page: str) -> list[str]:
    """Checks the three blocks on branches and on chosen children; returns the other ones."""
    routed, fanned, asked = shown[7:10]
    state, *lines = routed.splitlines()
    assert state == "done"
    assert sorted(lines[:3]) == [
        *("user 1, member, end", "user 2, member, end", "user 3, audit, file, end"),
    ]
    assert all(line in page for line in lines[3:])
    assert len(lines) == 10
    state, *lines = fanned.splitlines()
    assert state == "done"
    joined = '["discord 0 is done","twitter 1 is done","discord 2 is done"]'
    assert sorted(lines[:2]) == sorted([joined, "[]"])
    assert joined in page
    assert all(line in page for line in lines[2:])
    assert len(lines) == 8
    state, *lines, last = asked.splitlines()
    assert state == "done"
    checked = [line for line in lines if line.startswith("checked")]
    assert [line.endswith('"access": true}') for line in checked] == [True, True, False]
    results = sorted(line for line in lines if line.startswith("result"))
    assert results[0] == 'result {"given": [], "failed": 0}'
    assert '"role": 2, "success": true}], "failed": 1}' in results[1]
    assert last == "{'members': 2} ['join-1985']"
    return shown[:7] + shown[10:]
