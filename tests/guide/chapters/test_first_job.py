"""Tests the guide's first chapter: its blocks run in order, and print what the chapter shows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import GUIDE, ON_ONE_KIND, ROOT, Shells, blocks_of, environment, lines_of

if TYPE_CHECKING:
    from pathlib import Path

PAGE = GUIDE / "01-first-job.md"
# Words of other queues that mean something else here or nothing (CONTRIBUTING.md).
OTHER_WORDS = re.compile(r"\b(?:jobs?|tasks?|items?|payloads?)\b", re.IGNORECASE)


@pytest.mark.slow
@pytest.mark.rest
@ON_ONE_KIND
def test_the_chapter_runs(redis_url: str, tmp_path: Path):
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    blocks = blocks_of(PAGE)
    assert sum(block.is_background for block in blocks) == 1
    with Shells(tmp_path, environment(redis_url)) as shells:
        said = [shells.run(block) for block in blocks]
    everything = " ".join(said)
    assert "SyntaxError" in everything
    assert "50: 3 tokens" in everything
    assert "600 left of 600" in everything
    urgent, bulk = (line.split()[:2] for line in said[-1].splitlines())
    assert (urgent, bulk) == (["urgent", "done"], ["everything", "done"])
    assert in_input_order(tmp_path)


def in_input_order(folder: Path) -> bool:
    bulk = [json.loads(line) for line in lines_of(folder / "everything.ndjson")]
    rows = [json.loads(line) for line in lines_of(folder / "urgent.ndjson")]
    urgent = [json.loads(row["result"]) for row in rows]
    return all(
        [one["path"] for one in found] == lines_of(folder / name)
        for name, found in (("everything.txt", bulk), ("asyncio.txt", urgent))
    )


@pytest.mark.parametrize("page", sorted(GUIDE.glob("*.md")), ids=lambda page: page.stem)
def test_the_guide_keeps_to_the_words(page: Path):
    """A task is a function of an app, so only the chapter on them has the word; Spark has its own.

    The chapter on Spark is about orders, which have items.
    """
    may_have = {"03-tasks": "task", "04-from-a-lake-to-answers": "task job item"}
    own = may_have.get(page.stem, "").split()
    found = {word.lower().removesuffix("s") for word in OTHER_WORDS.findall(page.read_text())}
    assert found <= set(own)
