"""Every block of the README runs, in order, and shows what it says."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import (
    CLUSTER,
    FAILING,
    ON_ONE_KIND,
    PUBLISHED,
    README,
    ROOT,
    SPARK,
    Block,
    Shells,
    blocks_of,
    environment,
    lines_of,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@ON_ONE_KIND
def test_every_block_of_the_readme_runs(redis_url: str, tmp_path: Path):
    others = [*blocks_of(README, CLUSTER), *blocks_of(README, SPARK)]  # the latter: tests/spark
    blocks = [block for block in blocks_of(README) if block not in others]
    assert len(blocks) == 9
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks]
    assert said[0].splitlines()[-3:] == ["ONE", "TWO", "THREE"]
    first = json.loads(lines_of(tmp_path / "results.ndjson")[0])
    assert (first["index"], first["status"], first["result"]) == (0, "done", "ONE")
    failing, requeued = said[3:5]
    assert "done\nexit code 1\n" in failing
    assert "1 of 3 dead" in failing
    assert re.search(r"1 dead \(failed every attempt\): ValueError: .*\n.* index 1; ", failing)
    assert requeued == "1\n"
    assert "10000 of 10000" in said[6]
    assert "cancelled 2" in said[7]


@pytest.mark.slow
@ON_ONE_KIND
def test_the_worker_logs_the_failure_that_the_readme_quotes(redis_url: str, tmp_path: Path):
    block = next(block for block in blocks_of(README, FAILING))
    quoted = re.search(r"The worker logs `(.*?)`, with the traceback", README.read_text())
    assert quoted
    with Shells(tmp_path, environment(redis_url)) as shells:
        logged = shells.run(block._replace(text=f"exec 2>&1\n{block.text}"))
    assert quoted[1] in logged
    assert 'halves.py", line 2, in half' in logged


@pytest.mark.slow
@pytest.mark.parametrize("redis_server", ["cluster1"], indirect=True)
def test_the_blocks_about_a_cluster_run_on_one(redis_url: str, tmp_path: Path):
    up, *others = blocks_of(README, CLUSTER)
    assert up.text.startswith("docker compose -f cluster-compose.yml up -d")  # run by tests/compose
    assert len(others) == 2
    with Shells(tmp_path, environment(redis_url)) as shells:
        shells.run(blocks_of(README)[0])  # makes handlers.py and words.txt
        for block in others:
            assert PUBLISHED in block.text
            shells.run(block._replace(text=block.text.replace(PUBLISHED, redis_url)))
    assert lines_of(tmp_path / "shouted.txt") == ["ONE", "TWO", "THREE"]


@pytest.mark.slow
def test_the_readme_installs_into_an_environment_of_its_own(tmp_path: Path):
    """As pasted, `pip` is that of the environment: the one of the system may refuse."""
    (block,) = [block for block in blocks_of(README, languages=("sh",)) if "pip" in block.text]
    *made, install = block.text.splitlines()
    assert install == "pip install '.[embedded,progress]'"
    with Shells(tmp_path, dict(os.environ)) as shells:
        said = shells.run(Block("bash", "\n".join([*made, "command -v pip"])))
    assert said == f"{tmp_path / '.venv' / 'bin' / 'pip'}\n"


def test_the_readme_names_what_to_run_at_its_top():
    top = README.read_text().split("\n## ")[1]
    assert re.findall(r"^\$ (make .*?) +# ", top, re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "guide" / "01-first-job.md"])
def test_what_the_examples_write_into_the_clone_is_ignored_by_git(page: Path):
    text = "".join(block.text for block in blocks_of(page))
    written = {*re.findall(r"(?: > |--out |Path\(\")(\w+\.\w+)", text)}
    assert len(written) >= 5
    ignored = lines_of(ROOT / ".gitignore")
    assert [name for name in sorted(written) if f"/{name}" not in ignored] == []


def test_every_relative_link_of_the_readme_leads_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
