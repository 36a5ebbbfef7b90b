"""Tests docs/how-to/use/testing.md: its blocks run, and its helpers do what it describes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "use" / "testing.md"


@pytest.mark.rest
@ON_ONE_KIND
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks_of(PAGE)]
    assert "deadline" in said[-1]
