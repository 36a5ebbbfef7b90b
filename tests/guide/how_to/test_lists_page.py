"""Tests the page on plain lists: its blocks run in order, and print what the page shows."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest
import redis

from tests.guide.blocks import ON_ONE_KIND, ROOT, Shells, blocks_of, environment
from tests.support.servers.clusters import run_cluster
from tests.support.wait import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "how-to" / "use" / "lists.md"


@pytest.mark.slow
@pytest.mark.rest
@ON_ONE_KIND
def test_the_page_runs(redis_url: str, tmp_path: Path):
    with Shells(tmp_path, environment(redis_url)) as shells:
        outputs = [shells.run(block) for block in blocks_of(PAGE)]
    fanned, mpush, forwarded, balanced, program, queues, shortest = outputs
    newest_first = "three two one"
    lengths = ["orders 0", "orders:pending 0", "billing 3", "shipping 3"]
    assert fanned.splitlines() == ["3", newest_first, *lengths]
    assert_is_that_of_mpush(mpush.splitlines())
    assert forwarded.splitlines() == [
        *("3", "lag 0, forwarded 3, no forwarder is active", newest_first),
    ]
    shown, shown_queues = (one.text for one in blocks_of(PAGE, languages=("text",)))
    assert balanced == shown
    # The blocks before left 5 messages in `left` and 6 in `right`: now each list has 37.
    assert program.splitlines() == ["middle", "{'left': 32, 'middle': 37, 'right': 31}"]
    assert without_padding(queues) == without_padding(shown_queues)
    assert shortest == "south\n"
    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        client.flushall()  # of both databases: lists have no TTL


def without_padding(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


@pytest.mark.rest
def test_the_transcript_of_a_cluster(tmp_path: Path):
    """Types what the page shows; kills the primary that has the list `left`."""
    (transcript,) = (one.text for one in blocks_of(PAGE, languages=("console",)))
    steps = [step.partition("\n") for step in transcript.split("$ ")[1:]]
    assert sum(command == "kill -9 ..." for command, _, _ in steps) == 1
    with run_cluster() as cluster:
        env = environment(cluster.url)
        for command, _, shown in steps:
            if command == "kill -9 ...":
                cluster.kill(cluster.owner("left"))
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, env=env,
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (0, shown), f"{command}\n{done.stderr}"


def assert_is_that_of_mpush(found: list[str]) -> None:
    """Compares with what the README of mpush shows for these commands."""
    pushed, *outs, last, ids, message, xid, reported, done, service = found[:10]
    assert (pushed, outs, last, ids) == ("1", ["12345", "12345"], "1", "1")
    assert set(message.split()) == {"timestamp", "xid", "deadline", "service"}
    assert (xid, reported) == ("id 1 type number", "1")
    assert set(done.split()) == {"count", "sum", "max"}
    assert set(service.split()) == {"host", "pid", "started", "renewed"}
    lengths = ["in 0", "pending 0", "out0 1", "out1 1"]
    assert found[10:14] == [f"demo:mpush:{line}" for line in lengths]
    assert found[14].startswith("service demo:mpush:1 on ")
    assert found[15:] == ["0", "1", "1"]
