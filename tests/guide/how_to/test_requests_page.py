"""Tests docs/how-to/use/lines.md: its blocks run in order, and print what it shows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import (
    CLUSTER,
    FAILING,
    ON_ONE_KIND,
    PUBLISHED,
    REQUESTS,
    SPARK,
    Shells,
    blocks_of,
    environment,
    lines_of,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_every_block_of_the_page_runs(redis_url: str, tmp_path: Path):
    others = [*blocks_of(REQUESTS, CLUSTER), *blocks_of(REQUESTS, SPARK)]  # tests/spark
    blocks = [block for block in blocks_of(REQUESTS) if block not in others]
    assert len(blocks) == 10
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks]
    assert said[0].splitlines()[-3:] == ["ONE", "TWO", "THREE"]
    first = json.loads(lines_of(tmp_path / "results.ndjson")[0])
    assert (first["index"], first["status"], first["result"]) == (0, "done", "ONE")
    failing, requeued = said[3:5]
    assert "done, 1 dead\nexit code 1\n" in failing
    assert "1 dead of 3" in failing
    assert re.search(r"1 dead \(failed every attempt\): ValueError: .*\n.* index 1; ", failing)
    assert requeued.splitlines()[:2] == ["1", "done, repaired"]
    assert len(requeued.splitlines()) == 5
    assert "10000 of 10000" in said[6]
    assert said[7].split() == ["5001", "5001"]
    assert "cancelled 2" in said[8]


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_worker_logs_the_failure_that_the_page_quotes(redis_url: str, tmp_path: Path):
    block = next(block for block in blocks_of(REQUESTS, FAILING))
    quoted = re.search(r"The worker logs `(.*?)`, with the traceback", REQUESTS.read_text())
    assert quoted
    with Shells(tmp_path, environment(redis_url)) as shells:
        logged = shells.run(block._replace(text=f"exec 2>&1\n{block.text}"))
    assert quoted[1] in logged
    assert 'halves.py", line 2, in half' in logged


@pytest.mark.slow
@pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
@pytest.mark.rest
def test_the_blocks_about_a_cluster_run_on_one(redis_url: str, tmp_path: Path):
    up, *others = blocks_of(REQUESTS, CLUSTER)
    assert up.text.startswith("docker compose -f cluster-compose.yml up -d")  # run by tests/compose
    assert len(others) == 2
    with Shells(tmp_path, environment(redis_url)) as shells:
        shells.run(blocks_of(REQUESTS)[0])  # makes handlers.py and words.txt
        for block in others:
            assert PUBLISHED in block.text
            shells.run(block._replace(text=block.text.replace(PUBLISHED, redis_url)))
    assert lines_of(tmp_path / "shouted.txt") == ["ONE", "TWO", "THREE"]
