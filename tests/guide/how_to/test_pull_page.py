"""Tests the page on programs that take: its blocks run in order, and print what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "use" / "pull.md"


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        first, second, receipt, status, _ = (shells.run(block) for block in blocks_of(PAGE))
    assert first.splitlines() == [
        *("urgent False 1", "hello True 1", "a False 1", "b False 1", "[b'HELLO']"),
    ]
    attempt, refusal = second.splitlines()
    assert attempt == "2"
    assert "is too old: its lease is over" in refusal
    assert receipt == ""
    taken, *rest = status.splitlines()
    assert taken == "['message 1', 'message 2']"
    held, *waiting = [line.split()[6] for line in rest if " active " in line]
    assert (held, waiting) == ("1/3", ["0/3", "0/3"])
    assert sum(" done " in line for line in rest) == 1
    assert any(line.split()[:2] == ["wonder", "2"] for line in rest)
    ended = "ended     4 in the log"
    assert rest[-4:] == [ended, "message 2", "message 3", "message 4"]
