"""Every block of the README runs, in order, and shows what it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ROOT, Shells, blocks_of, environment, lines_of

if TYPE_CHECKING:
    from pathlib import Path

README = ROOT / "README.md"


@pytest.mark.slow
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_every_block_of_the_readme_runs(redis_url: str, tmp_path: Path):
    blocks = blocks_of(README)
    assert len(blocks) == 7
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks]
    assert said[0].splitlines()[-3:] == ["ONE", "TWO", "THREE"]
    first = json.loads(lines_of(tmp_path / "results.ndjson")[0])
    assert (first["index"], first["status"], first["result"]) == (0, "done", "ONE")
    assert "10000 of 10000" in said[4]
    assert "cancelled 2" in said[5]


def test_every_relative_link_of_the_readme_leads_somewhere():
    import re

    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
