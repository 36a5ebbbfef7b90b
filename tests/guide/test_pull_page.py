"""Every block of the page on programs that take runs, in order, and shows what the page says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "pull.md"


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        first, second, receipt, http, _ = (shells.run(block) for block in blocks_of(PAGE))
    assert first.splitlines() == [
        *("urgent False 1", "hello True 1", "a False 1", "b False 1", "[b'HELLO']"),
    ]
    attempt, refusal = second.splitlines()
    assert attempt == "2"
    assert "is too old: its lease is over" in refusal
    assert receipt == ""
    posted, got, nothing, status, *rest = http.splitlines()
    assert set(json.loads(posted)) == {"id"}
    (taken,) = json.loads(got)
    assert taken["message"] == "message 1"
    assert taken["receipt"].startswith(f"http~{json.loads(posted)['id']}~")
    assert (json.loads(nothing), status) == ([], "204")
    assert any("http" in line for line in rest)
