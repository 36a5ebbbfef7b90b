"""Every block of the page on plain lists runs, in order, and shows what the page describes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import redis

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "lists.md"


@pytest.mark.slow
@ON_ONE_KIND
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        outputs = [shells.run(block) for block in blocks_of(PAGE)]
    fanned, mpush, forwarded, balanced, program = outputs
    assert fanned.splitlines() == ["orders", "billing one two three", "shipping one two three"]
    assert mpush.splitlines() == [
        "demo:mpush:out0 12345",
        "demo:mpush:out1 12345",
        "demo:mpush:message:ids 1",
    ]
    assert forwarded.splitlines() == [
        "lag 0, forwarded 3, no forwarder is active",
        "archive one two three",
    ]
    assert balanced.splitlines() == ["left 2", "right 2"]
    assert program.splitlines() == ["middle", "{'left': 33, 'middle': 34, 'right': 33}"]
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        client.flushall()  # of both databases: lists have no TTL
