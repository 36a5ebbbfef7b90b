"""Tests the list of a Redis's queues, found by the names of keys."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fairlane.errors import InvalidArgument
from fairlane.operations import queues
from fairlane.operations.find import write_cursor
from fairlane.operations.queues import is_known, list_queues, similar_queues
from fairlane.protocol import keys
from fairlane.queue import Queue
from fairlane.records import QueueSummary
from tests.support.operations.lost_replies import Forgetful, settle
from tests.support.processes.beats import beat, make_older
from tests.support.scripts.requests import next_slice, work_off

if TYPE_CHECKING:
    import redis


def names(queue: Queue) -> list[str]:
    page = queue.driver.run(list_queues())
    assert page.after is None
    return [one.name for one in page.queues]


def test_each_queue_is_listed_once_with_what_is_in_it(queue: Queue, redis_client: redis.Redis):
    mail, old = Queue(queue.driver, "mail"), Queue(queue.driver, "old")
    mail.submit_request([b"x"] * 4, limit=2)
    mail.submit_request([b"x"], priority=90)
    for name in ("a:1", "b:1"):
        beat(mail, name)
    make_older(redis_client, mail, "b:1", 30_000)
    old.submit_request([b"x"])
    work_off(queue.driver, "old")
    beat(queue, "c:1")
    found = queue.driver.run(list_queues()).queues
    waits = [one.backlog and (one.backlog.waiting, one.backlog.lanes) for one in found]
    assert waits == [(5, {5: 4, 90: 1}), (0, {}), (0, {})]
    assert [replace(one, backlog=None) for one in found] == [
        QueueSummary("mail", tokens=3, requests=2, workers=1, ended=0, dead=0),
        QueueSummary("old", tokens=0, requests=0, workers=0, ended=1, dead=0),
        QueueSummary("req", tokens=0, requests=0, workers=1, ended=0, dead=0),
    ]


def test_the_dead_of_running_and_ended_requests_are_counted(queue: Queue):
    queue.submit_request([b"x"] * 2, id="r1", limit=1)
    settle(Forgetful(queue.driver, None), next_slice(queue.driver), verdict="dead")
    queue.submit_request([b"x"] * 3, id="r2", limit=1)
    settle(Forgetful(queue.driver, None), next_slice(queue.driver, count=1), verdict="dead")
    (found,) = queue.driver.run(list_queues()).queues
    assert (found.requests, found.ended, found.dead) == (1, 1, 3)


def test_shards_are_counted_with_their_queue(queue: Queue):
    queue.set_shards(3)
    queue.submit_many([[b"x"]] * 12, limit=1)
    (found,) = queue.driver.run(list_queues()).queues
    assert (found.name, found.tokens, len(found.shards)) == ("req", 12, 3)


def test_keys_of_other_programs_are_no_queues(queue: Queue, redis_client: redis.Redis):
    others = {"{user}:profile": "x", "{a b}:active": "x", "x:{active}:conf": "x"}
    for key, value in others.items():
        redis_client.set(key, value)
    queue.submit_request([b"x"], id="conf")
    assert names(queue) == ["req"]
    for key in others:
        redis_client.delete(key)


def test_a_queue_that_cannot_be_read_is_listed_without_counts(
    queue: Queue, redis_client: redis.Redis
):
    redis_client.set(keys.active("odd"), "x")
    queue.submit_request([b"x"])
    found = queue.driver.run(list_queues()).queues
    assert found[0] == QueueSummary("odd")
    assert (found[1].name, found[1].tokens) == ("req", 1)
    redis_client.delete(keys.active("odd"))


def test_pages_are_bounded_and_list_every_queue_once(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queues, "_COUNT", 10)
    wanted = [f"q{number:02}" for number in range(30)]
    for name in wanted:
        one = Queue(queue.driver, name)
        one.submit_request([b"x"])
        beat(one, "w:1")
    page = queue.driver.run(list_queues(most_keys=20))
    found, count = [one.name for one in page.queues], 1
    while page.after is not None:
        page = queue.driver.run(list_queues(page.after, most_keys=20))
        found += [one.name for one in page.queues]
        count += 1
    assert sorted(found) == wanted
    assert count > 2


@pytest.mark.parametrize(
    ("after", "sentence"),
    [
        ("x", "is not valid"),
        (write_cursor("the queues", "10.0.0.1:6379", "7"), "is not valid"),
        (write_cursor("queue req", "", "7"), "is of queue req, not of the queues"),
    ],
)
def test_a_cursor_of_something_else_is_refused(after: str, sentence: str, queue: Queue):
    with pytest.raises(InvalidArgument, match=sentence):
        queue.driver.run(list_queues(after))


@pytest.mark.parametrize("trace", ["submitted", "ended", "worker"])
def test_a_queue_is_found_by_whatever_is_left_of_it(trace: str, queue: Queue):
    assert not queue.driver.run(is_known("req"))
    if trace == "worker":
        beat(queue, "w:1")
    else:
        queue.submit_request([b"x"])
    if trace == "ended":
        work_off(queue.driver)
    assert queue.driver.run(is_known("req"))


def test_similar_names_are_found_among_all_names(queue: Queue):
    for name in ("images", "mail", "imports"):
        Queue(queue.driver, name).submit_request([b"x"])
    near, others = queue.driver.run(similar_queues("imges"))
    assert near[0] == "images"
    assert others == ["images", "imports", "mail"]
    assert queue.driver.run(similar_queues("xyz"))[0] == []
