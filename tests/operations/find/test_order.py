"""Tests lists of requests that are sorted by another field than urgency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations import find, tokens
from tests.operations.find.test_requests import listed, make_older, pages
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import take_slice, work_off

if TYPE_CHECKING:
    import redis

    from fairlane.queue import Queue


@for_each(
    "sort, found",
    [
        ("", ["few", "old", "many"]),
        ("priority", ["few", "old", "many"]),
        ("-priority", ["many", "few", "old"]),
        ("submitted", ["old", "few", "many"]),
        ("-submitted", ["many", "few", "old"]),
        ("waiting", ["few", "old", "many"]),
        ("-waiting", ["many", "old", "few"]),
        ("state", ["few", "many", "old"]),
        ("-state", ["old", "few", "many"]),
    ],
)
def test_unfinished_requests_are_sorted_and_equals_by_urgency(
    sort: str, found: list[str], queue: Queue, redis_client: redis.Redis
):
    queue.submit_request([b"x"], id="few", priority=1)
    queue.submit_request([b"x"] * 2, id="old", priority=1).pause()
    make_older(redis_client, queue, "few", 1_000)
    make_older(redis_client, queue, "old", 900 if sort.strip("-") in {"", "priority"} else 9_000)
    queue.submit_request([b"x"] * 3, id="many", priority=8)
    assert listed(queue, sort=sort) == found
    assert [*pages(queue, 1, sort=sort)][:3] == [[name] for name in found]


def test_what_a_worker_holds_does_not_wait(queue: Queue):
    queue.submit_request([b"x"] * 3, id="held", priority=0)
    queue.submit_request([b"x"] * 3, id="free", priority=9)
    assert take_slice(queue.driver, count=1) is not None
    page = queue.list_requests(sort="-waiting")
    assert [(one.id, one.waiting) for one in page.requests] == [("free", 3), ("held", 2)]
    assert [one.held for one in page.requests] == [0, 1]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_ended_requests_are_sorted_behind_all_unfinished_ones(limit: int, queue: Queue):
    for number in range(5):
        queue.submit_request([b"x"], id=f"ended-{number}", priority=number % 3)
        work_off(queue.driver)
    queue.submit_request([b"x"], id="running", priority=99)
    found = [name for page in pages(queue, limit, sort="-priority") for name in page]
    assert found == ["running", *(f"ended-{number}" for number in (2, 1, 4, 0, 3))]


def test_an_ending_that_comes_between_two_pages_moves_no_other(queue: Queue):
    for number in range(4):
        queue.submit_request([b"x"], id=f"r{number}")
        work_off(queue.driver)
    first = queue.list_requests(limit=2, sort="submitted")
    queue.submit_request([b"x"], id="late")
    work_off(queue.driver)
    rest = queue.list_requests(limit=9, sort="submitted", after=first.after)
    assert [one.id for one in (*first.requests, *rest.requests)] == ["r0", "r1", "r2", "r3"]


def test_each_part_of_a_large_queue_is_sorted_and_the_page_is_marked(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "MOST_READ", 20)
    monkeypatch.setattr(find, "_PART", 50)
    names = {one.id for one in queue.submit_many([[b"x"]] * 200, limit=1)}
    assert not queue.list_requests(limit=5).is_sorted
    assert not queue.list_requests(limit=5, sort="submitted").is_sorted
    assert queue.list_requests(states=["ended"], sort="submitted").is_sorted
    walked = listed(queue, 30, sort="-submitted")
    assert (len(walked), set(walked)) == (200, names)


def test_each_part_of_a_long_log_is_sorted_and_the_page_is_marked(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(find, "_PART", 3)
    for number in range(7):
        queue.submit_request([b"x"], id=f"r{number}")
        work_off(queue.driver)
    assert queue.list_requests().is_sorted
    assert not queue.list_requests(sort="submitted").is_sorted
    assert listed(queue, 2, sort="submitted") == ["r4", "r5", "r6", "r1", "r2", "r3", "r0"]


@pytest.mark.parametrize(
    ("sort", "sentence"),
    [
        ("age", "sort 'age' is not valid: "),
        ("-waitin", r"sort '-waitin' is not valid: did you mean -waiting\?"),
        (5, "sort 5 is not valid: write priority, submitted, waiting, state"),
    ],
)
def test_an_unknown_order_is_refused(sort: str, sentence: str, queue: Queue):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.list_requests(sort=sort)


def test_a_cursor_of_another_order_is_refused(queue: Queue):
    queue.submit_many([[b"x"]] * 3)
    after = queue.list_requests(limit=1, sort="waiting").after
    with pytest.raises(InvalidArgument, match="is of a list with sort='waiting', not '': begin"):
        queue.list_requests(after=after)
