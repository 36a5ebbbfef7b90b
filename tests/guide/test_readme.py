"""Tests the README: its blocks run in order, and print what it shows."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import (
    GUIDE,
    ON_ONE_KIND,
    README,
    REQUESTS,
    ROOT,
    Block,
    Shells,
    blocks_of,
    environment,
    lines_of,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.rest
@pytest.mark.slow
@ON_ONE_KIND
def test_every_block_of_the_readme_runs(redis_url: str, tmp_path: Path):
    blocks = blocks_of(README)
    assert [block.language for block in blocks] == ["bash", "bash", "python", "bash"]
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks]
    assert said[2].splitlines() == ["Size(width=100, height=50)", "1000000"]
    assert said[3].splitlines()[-3:] == ["ONE", "TWO", "THREE"]


@pytest.mark.slow
@pytest.mark.rest
def test_the_readme_installs_into_an_environment_of_its_own(tmp_path: Path):
    """As pasted, `pip` is that of the environment: the system's may refuse."""
    (block,) = [block for block in blocks_of(README, languages=("sh",)) if "pip" in block.text]
    *made, install = block.text.splitlines()
    assert install == "pip install '.[embedded,progress]'"
    with Shells(tmp_path, dict(os.environ)) as shells:
        said = shells.run(Block("bash", "\n".join([*made, "command -v pip"])))
    assert said == f"{tmp_path / '.venv' / 'bin' / 'pip'}\n"


def test_the_readme_is_short_and_names_what_to_run():
    text = README.read_text()
    assert len(text.splitlines()) <= 180
    assert re.findall(r"^\$ (make .*?) +# ", text, re.MULTILINE) == [
        *("make demo", "make demo-spark", "make test")
    ]


@pytest.mark.parametrize(
    ("page", "least"), [(README, 3), (REQUESTS, 5), (GUIDE / "01-first-job.md", 5)]
)
def test_files_that_the_examples_write_are_ignored_by_git(page: Path, least: int):
    text = "".join(block.text for block in blocks_of(page))
    written = {*re.findall(r"(?: > |--out |Path\(\")(\w+\.\w+)", text)}
    assert len(written) >= least
    ignored = lines_of(ROOT / ".gitignore")
    assert [name for name in sorted(written) if f"/{name}" not in ignored] == []


@pytest.mark.parametrize("page", [README, REQUESTS])
def test_every_relative_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
