"""Tests the guide's third chapter: its blocks run in order, and print what the chapter shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.guide.blocks import GUIDE, ON_ONE_KIND, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = GUIDE / "03-tasks.md"
PRINTED = {
    'resize.submit("a.png", width=100)': (
        "Size(width=100, height=50)\nSize(width=200, height=100)\n"
    ),
    "widht": (
        "task resize: got an unexpected keyword argument 'widht'; did you mean width?\n"
        "task resize: missing a required argument: 'path'; its arguments are path, width\n"
        "task resize: argument path cannot be encoded: Encoding objects of type object is "
        "unsupported\n"
    ),
    "5_000": (
        "Size(width=8, height=4) done\n5000 of 5000\n20000\n"
        "[Size(width=2, height=1), Size(width=4, height=2)]\n"
    ),
    'batch("monday")': (
        "Size(width=200, height=100)\n"
        "task resize: sub-request 1 of request monday is dead after 3 attempts: "
        "ValueError: b.gif is no PNG\n"
        "Size(width=200, height=100)\n"
        '1 3 ValueError b.gif is no PNG\nraise ValueError(f"{path} is no PNG")\n'
    ),
    "publish.asubmit": (
        "a.png is published, at attempt 2 of 2\nb.png is published, at attempt 2 of 2\n"
        "not for the public\n"
    ),
}


@pytest.mark.slow
@ON_ONE_KIND
@pytest.mark.rest
def test_the_chapter_runs(redis_url: str, tmp_path: Path):
    blocks = blocks_of(PAGE)
    assert sum(block.is_background for block in blocks) == 1
    with Shells(tmp_path, environment(redis_url)) as shells:
        printed = {block.text: shells.run(block) for block in blocks}
    for words, expected in PRINTED.items():
        (shown,) = [shown for text, shown in printed.items() if words in text]
        assert shown == expected
    (mail,) = [shown for text, shown in printed.items() if "--app mail:app" in text]
    assert "send {'to': 'anna@example'} took a moment\n" in mail
    assert "dead: send bert is no address\n" in mail
    assert "closed smtp.example\n" in mail
    assert "state     done, 1 dead of 2" in mail
    (waits,) = [shown for text, shown in printed.items() if "newer" in text]
    assert waits.startswith("waits     no worker has had the task rotate: it waits for a worker")
