"""Tests `make demo` on a small part of the corpus: what it shows, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samples.corpus.picture import picture
from samples.corpus.table import peak

from fairlane import FairlaneError, Queue
from tests.guide.blocks import ON_ONE_KIND, ROOT, environment, lines_of
from tests.support.run.params import rest_but
from tests.support.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "demo-corpus"
END_S = 90.0
LIMITS = {"bulk": 3, "middle": 2, "urgent": 3}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for its processes in /proc"),
]


@dataclass
class Demo:
    """The demo on one Redis, with a folder for its results."""

    url: str
    out: Path

    def start(self, files: int, *more: str) -> subprocess.Popen[str]:
        script = str(ROOT / "samples" / "corpus" / "demo.py")
        return subprocess.Popen(
            [sys.executable, script, "--files", str(files), "--out", str(self.out), *more],
            cwd=ROOT,
            env=environment(self.url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, files: int) -> tuple[str, str]:
        """Runs it to its good end: (data, messages)."""
        with self.start(files) as process:
            out, talk = process.communicate(timeout=END_S)
        assert process.returncode == 0, out + talk
        return out, talk

    def processes(self) -> list[int]:
        """Returns every other process with this Redis's URL in its environment."""
        mark = f"FAIRLANE_REDIS={self.url}".encode()
        return [pid for pid, env in _environments() if mark in env.split(b"\0")]


def _environments() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                yield int(entry.name), (entry / "environ").read_bytes()
            except OSError:  # it has just ended, or belongs to another user
                continue


@pytest.fixture
def demo(redis_url: str, tmp_path: Path) -> Iterator[Demo]:
    """Yields the demo; whatever a failed test left of it is ended."""
    started = Demo(redis_url, tmp_path / "out")
    yield started
    for pid in started.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.rest
def test_the_urgent_request_overtakes(demo: Demo):
    out, talk = demo.run(700)
    assert demo.processes() == []
    rows = [line.split() for line in out.splitlines()]
    head = next(n for n, row in enumerate(rows) if row[:2] == ["request", "priority"])
    table = {row[0].partition("-")[0]: row for row in rows[head + 2 : head + 5]}
    assert set(table) == set(LIMITS)
    assert "urgent is submitted" in talk
    with Queue.from_url(demo.url, name=QUEUE) as queue:
        ended = [ending.id for ending in queue.completions("0", follow=False)]
        assert queue.status().requests == ()
    assert [name.partition("-")[0] for name in ended].index("urgent") < ended.index(
        table["bulk"][0]
    )
    for name, limit in LIMITS.items():
        check_results(demo, name, limit, count=int(table[name][3]))


def check_results(demo: Demo, name: str, limit: int, count: int) -> None:
    """Checks one request's file: whole, in input order, never more workers than the limit."""
    found = [json.loads(line) for line in lines_of(demo.out / f"{name}.ndjson")]
    paths = [one["path"] for one in found]
    assert len(paths) == count
    assert paths == sorted(set(paths))
    intervals = [(one["run"]["began"], one["run"]["ended"]) for one in found]
    assert 1 <= peak(intervals) <= limit


@pytest.mark.rest
@ON_ONE_KIND
@pytest.mark.parametrize("number", rest_but(1, zip([signal.SIGINT, signal.SIGTERM])))
def test_an_interrupted_demo_leaves_nothing_behind(demo: Demo, number: signal.Signals):
    with demo.start(1000) as process:
        wait_until(lambda: bulk_done(demo), END_S, why="it works")
        process.send_signal(number)
        _, talk = process.communicate(timeout=END_S)
    assert process.returncode == 130, talk
    assert "Traceback" not in talk
    assert demo.processes() == []
    with Queue.from_url(demo.url, name=QUEUE) as queue:
        assert queue.status().requests == ()


@pytest.mark.rest
@ON_ONE_KIND
def test_a_killed_demo_does_not_disturb_the_next(demo: Demo):
    with demo.start(1000) as process:
        wait_until(lambda: bulk_done(demo), END_S, why="it works")
        process.kill()
        process.communicate(timeout=END_S)
    demo.run(500)
    wait_until(lambda: demo.processes() == [], END_S, why="the killed demo's workers end")


@pytest.mark.rest
@ON_ONE_KIND
def test_a_demo_whose_workers_cannot_start_fails(demo: Demo):
    with demo.start(10, "--processes", "0") as process:
        _, talk = process.communicate(timeout=END_S)
    assert process.returncode == 1, talk
    assert "every worker has ended before its time" in talk
    assert "processes 0 is not valid" in talk


def bulk_done(demo: Demo) -> bool:
    """Returns True if the running demo's bulk request has results."""
    with Queue.from_url(demo.url, name=QUEUE) as queue:
        try:
            return any(request.done for request in queue.status().requests)
        except FairlaneError:
            return False


def test_the_picture_shows_the_table_and_the_timeline_and_needs_no_other_host():
    lines = ["0.1 s  begun", "", "request  priority", "urgent-1  0", "workers", "urgent-1  21"]
    drawn = picture("\n".join([*lines, "  0 s  1 s", "", "ok"]))
    for shown in ("priority", "urgent-1", "21", "workers"):
        assert shown in drawn
    assert "begun" not in drawn
    assert [*re.findall(r"https?://[^\"]+", drawn)] == ["http://www.w3.org/2000/svg"]
    assert (ROOT / "docs" / "demo.svg").read_text().startswith(drawn[:40])
