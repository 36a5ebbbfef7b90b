"""Tests the list of a request's failures: dead ones by kind, and those that wait for a retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.errors import RequestNotFound
from fairlane.model import Verdict, result_head
from fairlane.operations import dead_letters, lease
from tests.support.both_faces import both_faces
from tests.support.scripts.requests import ask, next_slice

if TYPE_CHECKING:
    from fairlane.queue import Queue

DELAY_MS = 60_000


def fail(queue: Queue, verdicts: list[tuple[str, str]]) -> None:
    """Settles one slice; each of its sub-requests fails by one verdict with an error."""
    held = next_slice(queue.driver)
    found = []
    for (entry_id, _), (verdict, error) in zip(held.entries, verdicts, strict=True):
        head = result_head(entry_id.rpartition(b"-")[2], b"x", held.attempt, 0, 0)
        found.append(Verdict(entry_id, verdict, DELAY_MS, head, error))
    queue.driver.run(ask(lease.complete(held, [], [], found, keep=False)))


@both_faces
def test_the_dead_are_grouped_and_what_waits_has_the_last_error(queue: Queue):
    request = queue.submit_request([b"x"] * 4, limit=1)
    fail(
        queue,
        [
            ("dead", "ValueError: bad 1"),
            ("dead", "ValueError: bad 2"),
            ("dead", "KeyError: x"),
            ("retry", "TimeoutError: late"),
        ],
    )
    found = request.errors()
    assert [(group.count, group.headline) for group in found.groups] == [
        (2, "ValueError: bad 1"),
        (1, "KeyError: x"),
    ]
    assert (found.more, found.retries, found.is_given_back) == (0, 1, False)
    assert found.last_error is not None
    assert found.last_error.error in {"TimeoutError: late", "KeyError: x"}
    assert 0 < (found.due_ms or 0) - found.now_ms <= DELAY_MS


def test_a_request_without_failures_has_none(queue: Queue):
    found = queue.submit_request([b"x"]).errors()
    assert (found.groups, found.retries, found.last_error) == ([], 0, None)


def test_no_more_than_a_bounded_number_of_dead_is_read(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dead_letters, "PAGE", 2)
    request = queue.submit_request([b"x"] * 5, limit=1)
    fail(queue, [("dead", "ValueError: bad")] * 5)
    found = queue.driver.run(dead_letters.request_errors(request.id, most=2))
    assert ([group.count for group in found.groups], found.more) == ([2], 3)


def test_an_unknown_request_is_refused(queue: Queue):
    with pytest.raises(RequestNotFound):
        queue.request("nothing").errors()


def test_the_failures_of_a_queue_are_grouped_within_a_bound(queue: Queue):
    for _ in range(3):
        queue.submit_request([b"x"] * 2, limit=1)
        fail(queue, [("dead", "ValueError: bad 1"), ("dead", "KeyError: x")])
    queue.submit_request([b"x"], id="calm").cancel()
    found = queue.errors()
    assert [(one.count, one.requests, one.headline) for one in found.groups] == [
        (3, 3, "ValueError: bad 1"),
        (3, 3, "KeyError: x"),
    ]
    assert (found.more, found.unread, len(found.groups[0].examples)) == (0, 0, 3)
    few = queue.driver.run(dead_letters.queue_errors(queue.name, most=3))
    assert (sum(one.count for one in few.groups), few.more) == (4, 2)
