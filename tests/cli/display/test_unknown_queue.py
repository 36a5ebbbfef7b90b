"""Tests the hint about a queue that was never used; nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Queue
from fairlane.cli.output import unknown
from tests.support.run.for_each import for_each

if TYPE_CHECKING:
    from tests.cli.program import Program

HINT = "fairlane: queue imges has never been used on this Redis; did you mean images?\n"
READERS = ("status", "list", "workers", "stats", "dead list", "completions")


@for_each("name", READERS)
def test_a_mistyped_queue_gets_the_closest_name(name: str, program: Program):
    program("submit", "-", "--queue", "images", stdin=b"a\n")
    ended = program(*name.split(), "--queue", "imges")
    assert ended.code == 0
    assert HINT in ended.err
    assert HINT in program(*name.split(), "--queue", "imges", "--json").err


@for_each("name", READERS)
def test_a_known_queue_gets_no_hint(name: str, program: Program):
    for queue in ("images", "mail"):
        program("submit", "-", "--queue", queue, stdin=b"a\n")
    assert "never been used" not in program(*name.split(), "--queue", "mail").err


def test_without_a_similar_name_the_queues_are_listed(program: Program):
    for queue in ("images", "mail"):
        program("submit", "-", "--queue", queue, stdin=b"a\n")
    assert program("status", "--queue", "xyz").err == (
        "fairlane: queue xyz has never been used on this Redis; others on it are images, mail\n"
    )


@pytest.mark.rest
def test_a_worker_logs_the_hint_and_works(program: Program):
    program("submit", "-", "--queue", "images", stdin=b"a\n")
    ended = program("worker", "--queue", "imges", "--until-idle")
    assert ended.code == 0
    assert HINT in ended.err
    ended = program("worker", "--queue", "imags", "--until-idle", "--log-level", "warning")
    assert "never been used" not in ended.err
    ended = program("worker", "--queue", "images", "--until-idle")
    assert "never been used" not in ended.err


def test_a_queue_that_is_used_meanwhile_gets_no_hint(queue: Queue):
    """A worker starts, and the first request is submitted between its two checks."""
    queue.submit_request([b"a"])
    looks = 0

    class Between:
        """A driver that did not find the queue at the first check."""

        def run(self, operation: Any) -> Any:
            nonlocal looks
            looks += 1
            found = queue.driver.run(operation)
            return False if looks == 1 else found

    late = Queue(queue.driver, queue.name)
    late.driver = Between()  # type: ignore[assignment]
    assert unknown(late) == ""
