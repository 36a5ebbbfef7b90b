"""Tests the page on traces: its blocks run in order, and print what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "watch" / "tracing.md"


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        *_, shown = (shells.run(block) for block in blocks_of(PAGE))
    (expected,) = (block.text for block in blocks_of(PAGE, languages=("text",)))
    assert sorted(shown.splitlines()) == sorted(expected.splitlines())
