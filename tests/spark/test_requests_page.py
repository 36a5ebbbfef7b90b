"""Runs the block of docs/how-to/use/lines.md about Spark: it prints what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import REQUESTS, SPARK, Shells, blocks_of, environment
from tests.spark.processes import skip_without_java

if TYPE_CHECKING:
    from pathlib import Path

END_S = 300.0


@pytest.mark.spark
@pytest.mark.rest
@pytest.mark.timeout(2 * END_S)
@pytest.mark.parametrize("redis_server", ["single"], indirect=True)
def test_the_block_runs(redis_url: str, tmp_path: Path):
    skip_without_java()
    (tmp_path / "words.txt").write_text("one\ntwo\nthree\n")
    (block,) = blocks_of(REQUESTS, SPARK)
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = shells.run(block, END_S)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines()]
    assert cells[-5:-1] == [["0", "done", "ONE"], ["1", "done", "TWO"], ["2", "done", "THREE"], []]
