"""Tests the list of requests: its order, filters and pages, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations import find, tokens
from fairlane.operations.find import filter_of, write_cursor
from fairlane.protocol import keys
from fairlane.protocol.steps import Command
from fairlane.queue import Queue
from tests.support.both_faces import both_faces
from tests.support.operations.stepping import drive
from tests.support.run.for_each import for_each
from tests.support.scripts.requests import change_number, next_slice, settle, take_slice, work_off

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from fairlane.protocol.steps import Step

HOUR_MS = 3_600_000


def pages(queue: Queue, limit: int, **wanted: Any) -> Iterator[list[str]]:
    """Returns the ids of each page, until the end of the list."""
    after: str | None = None
    while True:
        page = queue.list_requests(limit=limit, after=after, **wanted)
        yield [one.id for one in page.requests]
        after = page.after
        if not after:
            return


def listed(queue: Queue, limit: int = 100, **wanted: Any) -> list[str]:
    return [request_id for page in pages(queue, limit, **wanted) for request_id in page]


def make_older(client: redis.Redis, queue: Queue, request_id: str, by_ms: int) -> None:
    change_number(
        client, request_id, "born", queue.request(request_id).progress().submitted_ms - by_ms
    )


@both_faces
def test_running_requests_are_urgent_first_and_ended_ones_newest_first(queue: Queue):
    for name in ("first", "second"):
        queue.submit_request([b"x"], id=name)
        work_off(queue.driver)
    queue.submit_request([b"x"], id="late", priority=9)
    queue.submit_request([b"x"], id="urgent", priority=0)
    queue.submit_request([b"x"], id="held", priority=3)
    assert take_slice(queue.driver, count=1) is not None
    queue.request("late").pause()
    page = queue.list_requests()
    assert [(one.id, one.state) for one in page.requests] == [
        ("urgent", "active"),
        ("held", "active"),
        ("late", "paused"),
        ("second", "done"),
        ("first", "done"),
    ]
    assert page.after is None


@for_each(
    "wanted, found",
    [
        ({"states": ["running"]}, ["mail-1", "web-1", "mail-2"]),
        ({"states": ["ended"]}, ["web-2", "mail-3"]),
        ({"states": ["paused", "done"]}, ["mail-2", "mail-3"]),
        ({"states": ["cancelled"]}, ["web-2"]),
        ({"states": ["lost"]}, []),
        ({"priorities": [1, 7]}, ["mail-1", "mail-2"]),
        ({"id_prefix": "mail"}, ["mail-1", "mail-2", "mail-3"]),
        ({"id_prefix": "web", "states": ["ended"]}, ["web-2"]),
    ],
)
def test_filters_leave_out_what_does_not_match(
    wanted: dict[str, Any], found: list[str], queue: Queue
):
    queue.submit_request([b"x"], id="mail-3")
    work_off(queue.driver)
    queue.submit_request([b"x"], id="web-2").cancel("enough")
    queue.submit_request([b"x"], id="mail-1", priority=1)
    queue.submit_request([b"x"], id="web-1")
    queue.submit_request([b"x"], id="mail-2", priority=7).pause()
    assert listed(queue, **wanted) == found


def test_age_counts_from_the_submission_by_the_clock_of_redis(
    queue: Queue, redis_client: redis.Redis
):
    queue.submit_request([b"x"], id="new")
    queue.submit_request([b"x"], id="old")
    make_older(redis_client, queue, "old", HOUR_MS)
    assert listed(queue, older_s=1800) == ["old"]
    assert listed(queue, newer_s=1800) == ["new"]
    assert listed(queue, older_s=1800, newer_s=7200) == ["old"]
    assert listed(queue, older_s=7200) == []


def test_an_ended_request_has_the_age_of_its_submission(queue: Queue, redis_client: redis.Redis):
    """Entries that were added to the log just now do not change it."""
    queue.submit_request([b"x"], id="old")
    make_older(redis_client, queue, "old", HOUR_MS)
    queue.submit_request([b"x"], id="new")
    work_off(queue.driver)
    assert sorted(listed(queue)) == ["new", "old"]
    assert listed(queue, newer_s=1800) == ["new"]
    assert listed(queue, older_s=1800) == ["old"]


@for_each("limit", [1, 2, 3, 7, 100])
def test_pages_follow_each_other_without_a_gap_or_a_repeat(limit: int, queue: Queue):
    for number in range(4):
        queue.submit_request([b"x"], id=f"ended-{number}")
        work_off(queue.driver)
    for number in range(5):
        queue.submit_request([b"x"], id=f"running-{number}", priority=number % 2)
    found = [*pages(queue, limit)]
    assert all(len(page) <= limit for page in found)
    assert [name for page in found for name in page] == [
        *(f"running-{number}" for number in (0, 2, 4, 1, 3)),
        *(f"ended-{number}" for number in (3, 2, 1, 0)),
    ]


def test_a_request_that_comes_between_two_pages_moves_no_other(queue: Queue):
    for number in range(4):
        queue.submit_request([b"x"], id=f"r{number}")
    first = queue.list_requests(limit=2)
    queue.submit_request([b"x"], id="urgent", priority=0)
    rest = queue.list_requests(limit=2, after=first.after)
    assert [one.id for one in (*first.requests, *rest.requests)] == ["r0", "r1", "r2", "r3"]


def test_a_request_that_ends_while_a_page_is_read_has_one_row(queue: Queue):
    """The request is read as running, and then as the newest end."""
    queue.submit_request([b"x"], id="mine")
    queue.submit_request([b"x"], id="other", priority=9)
    held = next_slice(queue.driver)

    def end_it_before_the_log_is_read(step: Step) -> bool:
        if isinstance(step, Command) and step.args[0] == b"XREVRANGE":
            settle(queue.driver, held)
        return False

    operation = find.list_requests("req", filter_of())
    page = drive(queue.driver, operation, end_it_before_the_log_is_read)
    assert [(one.id, one.state) for one in page.requests] == [("other", "active"), ("mine", "done")]


def test_a_large_queue_is_listed_whole_after_its_most_urgent_requests(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """With more unfinished requests than a page reads, each of them is in some later part."""
    monkeypatch.setattr(tokens, "MOST_READ", 20)
    monkeypatch.setattr(find, "_PART", 50)
    bulk = {one.id for one in queue.submit_many([[b"x"]] * 200, priority=7, limit=1)}
    urgent = {one.id for one in queue.submit_many([[b"x"]] * 5, priority=0, limit=1)}
    found = [*pages(queue, 30)]
    assert set(found[0][:5]) == urgent
    assert all(len(page) <= 30 for page in found)
    walked = [name for page in found for name in page]
    assert set(walked) == bulk | urgent
    assert len(walked) <= 205 + 45  # the first part comes again: 20 tokens, 20 entries, 5 urgent


def test_a_page_reads_a_bounded_part_of_the_log(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    """So a filter that matches little gives an empty page and a cursor, not a long search."""
    monkeypatch.setattr(tokens, "MOST_READ", 10)
    monkeypatch.setattr(find, "_PART", 10)
    for number in range(15):
        queue.submit_request([b"x"], id=f"r{number:02}")
        work_off(queue.driver)
    assert [*pages(queue, 5, states=["ended"], id_prefix="r00")] == [[], ["r00"]]


def test_unfinished_requests_and_endings_share_the_bound_of_a_page(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokens, "MOST_READ", 10)
    monkeypatch.setattr(find, "_PART", 4)
    for number in range(9):
        queue.submit_request([b"x"], id=f"ended-{number}")
        work_off(queue.driver)
    queue.submit_many([[b"x"]] * 8, ids=[f"running-{number}" for number in range(8)])
    found = [*pages(queue, 100)]
    assert [len(page) for page in found] == [8 + 4, 5]
    assert found[1] == [f"ended-{number}" for number in (4, 3, 2, 1, 0)]


@pytest.mark.parametrize("states", [[], ["running"], ["ended"]], ids=str)
def test_an_empty_queue_has_an_empty_page(states: list[str], queue: Queue):
    page = queue.list_requests(states=states)
    assert (page.requests, page.after) == ([], None)


def test_foreign_entries_of_the_log_are_shown_as_far_as_they_can_be_read(
    queue: Queue, redis_client: redis.Redis
):
    redis_client.xadd(keys.completed("req"), {"id": "x", "state": "odd", "dead": "many"})
    (one,) = queue.list_requests().requests
    assert (one.id, one.state, one.dead, one.submitted_ms) == ("x", "odd", 0, 0)
    redis_client.delete(keys.completed("req"))


@for_each(
    "wanted, sentence",
    [
        ({"states": ["actve"]}, r"state 'actve' is not valid: did you mean active\?"),
        ({"states": ["xyz"]}, "the states are running, ended, active, paused"),
        ({"states": b"active"}, "give one, or a list"),
        ({"priorities": [100]}, "priority 100 is not valid"),
        ({"id_prefix": "a{b"}, "ids have letters, digits"),
        ({"older_s": -1}, "older_s -1 is not valid: 0 to 1,000,000,000,000 s is expected"),
        ({"newer_s": 1e13}, "0 to 1,000,000,000,000 s is expected"),
        ({"newer_s": "1h"}, "a number of seconds is expected"),
        ({"newer_s": 1e308}, "a number of seconds is expected"),
        ({"older_s": 10**400}, "a number of seconds is expected"),
        ({"older_s": 60, "newer_s": 60}, "exclude each other"),
        ({"limit": 0}, "limit 0 is not valid: a whole number from 1 to 1,000"),
        ({"limit": 1001}, "limit 1001 is not valid"),
        ({"after": "nothing"}, "cursor 'nothing' is not valid: give the one that the page before"),
        ({"after": write_cursor("queue req", "urgent")}, "is not valid"),
        ({"after": write_cursor("queue req", "x", "0", [0, 0, ""], "")}, "is not valid"),
        ({"after": write_cursor("queue mail", "ended")}, "is of queue mail, not of queue req"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(wanted: dict[str, Any], sentence: str, queue: Queue):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.list_requests(**wanted)


def test_an_unknown_filter_is_a_type_error(queue: Queue):
    with pytest.raises(
        TypeError, match=r"filter state is not valid: .*states, tags, tasks, tenants are known"
    ):
        queue.list_requests(state="active")  # type: ignore[call-arg]


def test_a_cursor_of_another_queue_is_refused(queue: Queue):
    queue.submit_many([[b"x"]] * 3)
    after = queue.list_requests(limit=1).after
    with pytest.raises(InvalidArgument, match="is of queue req, not of queue mail"):
        Queue(queue.driver, "mail").list_requests(after=after)
